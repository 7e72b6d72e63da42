"""Checks of arguments; the error names the argument, what was expected and what was got."""

from __future__ import annotations

from fractions import Fraction
from numbers import Real

from wavecore.errors import UsageError

_NUMERATOR, _DENOMINATOR = 2**31 - 1, 100_000  # of frame rates; FFmpeg has 32 bits for each


def choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Reject a value that is none of those allowed."""
    if value not in allowed:
        raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")


def whole(name: str, value: object, least: int | None = None, most: int | None = None) -> None:
    """Reject what is no whole number, or one below `least` or above `most`."""
    if isinstance(value, int) and not isinstance(value, bool):
        enough, not_too_much = least is None or value >= least, most is None or value <= most
        if enough and not_too_much:
            return
    bounds = [] if least is None else [f"at least {least}"]
    bounds += [] if most is None else [f"at most {most}"]
    expected = f" of {' and '.join(bounds)}" if bounds else ""
    raise UsageError(f"{name}: expected a whole number{expected}, got {value!r}")


def positive(name: str, value: float) -> float:
    """`value`, which must be a finite number above 0."""
    if not _is_number(value) or not 0 < value < float("inf"):
        raise UsageError(f"{name}: expected a finite number above 0, got {value!r}")
    return value


def share(name: str, value: float) -> float:
    """`value`, which must be a number within (0, 1]."""
    if not _is_number(value) or not 0 < value <= 1:
        raise UsageError(f"{name}: expected a number within (0, 1], got {value!r}")
    return value


def pixels(value: tuple[int, int], across: int, down: int) -> tuple[int, int]:
    """`value`, which must be a width in multiples of `across` and a height in multiples of `down`."""
    try:
        width, height = value
    except (TypeError, ValueError):
        raise UsageError(f"size: expected a width and a height in pixels, got {value!r}") from None
    whole("size", width, 1)
    whole("size", height, 1)
    if width % across or height % down:
        raise UsageError(
            f"size: expected a width in multiples of {across} and a height in multiples of {down}, "
            f"got {width}x{height}"
        )
    return width, height


def frame_rate(name: str, value: float | Fraction) -> Fraction:
    """`value`, which must be a number of frames a second that a video file can state, as a fraction."""
    positive(name, float(value) if isinstance(value, Fraction) else value)
    if not 1 / _DENOMINATOR <= value <= _NUMERATOR:
        lowest, highest = f"{1 / _DENOMINATOR:g}", _NUMERATOR
        raise UsageError(f"{name}: expected a number from {lowest} to {highest}, got {value!r}")
    exact = value if isinstance(value, Fraction) else Fraction(float(value))
    return exact.limit_denominator(min(_DENOMINATOR, max(1, int(_NUMERATOR / exact))))


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
