"""The playback plan β: when each group of frames is due."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate

from wavecore.control.clock import SECOND, nanoseconds
from wavecore.errors import UsageError


class PlaybackPlan:
    """Deadlines of all positions: some first durations, then one duration for ever.

    Parameters
    ----------
    duration : float or Fraction
        Seconds δ of each group that `first` does not list. Deadlines are multiples of the exact value, so
        4/30 s accumulates no rounding.
    first : sequence of float or Fraction
        Seconds of the first groups (a causal VAE decodes its first latent to a single frame).

    Attributes
    ----------
    start : int or None
        Time of position 0 in nanoseconds; None before playback.
    uniform_from : int
        Position from which all durations are alike.
    rounding : int
        Nanoseconds by which the distance of two deadlines may differ from place to place.
    """

    def __init__(self, duration: float | Fraction, first: Sequence[float | Fraction] = ()) -> None:
        for name, value in (("duration", duration), *(("first durations", value) for value in first)):
            if not nanoseconds(value, name):
                raise UsageError(f"{name}: expected at least a nanosecond, got {value}")
        step = Fraction(duration).limit_denominator(10**6) * SECOND
        self._step, self._per = step.numerator, step.denominator
        self._first = (0, *accumulate(nanoseconds(value) for value in first))
        self.uniform_from = len(first)
        self.rounding = int(self._per > 1)
        self.start: int | None = None

    def offset(self, position: int) -> int:
        """Nanoseconds from the start of position 0 to the start of `position`."""
        beyond = position - self.uniform_from
        if beyond < 0:
            return self._first[position]
        return self._first[-1] + beyond * self._step // self._per

    def deadline(self, position: int) -> int:
        """Time b_j at which `position` is due; playback must have begun."""
        assert self.start is not None
        beyond = position - self.uniform_from
        if beyond < 0:
            return self.start + self._first[position]
        return self.start + self._first[-1] + beyond * self._step // self._per

    def position_from(self, time: int) -> int:
        """First position that is due at `time` or later."""
        assert self.start is not None
        beyond = time - self.start - self._first[-1]
        if beyond > 0:
            return self.uniform_from - (-beyond * self._per // self._step)
        return bisect_left(self._first, time - self.start)

    def delay(self, by: int) -> None:
        """Move every deadline `by` nanoseconds later; those passed no longer matter."""
        assert self.start is not None
        self.start += by
