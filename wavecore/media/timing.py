"""Frame times: a clip of any frame timing as frames at a constant rate."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from fractions import Fraction
from typing import TypeVar

Frame = TypeVar("Frame")


def resample(frames: Iterable[tuple[Fraction, Fraction, Frame]], fps: Fraction) -> Iterator[Frame]:
    """Give frames at a constant rate, repeating or leaving out source frames.

    Source frame i, shown from its time to the time of frame i + 1, fills the output frames
    ``round(time_i * fps) <= k < round(time_{i+1} * fps)`` (halves round up). A clip of constant rate at
    its own rate therefore gives each frame once, however its container rounds the times.

    Parameters
    ----------
    frames : iterable of (time, duration, frame)
        Times in seconds from the first frame, not decreasing; the duration matters for the last frame only.
    fps : Fraction
        Output frames a second, above 0.

    Yields
    ------
    frame
        At least one when there is a source frame.
    """
    emitted = 0
    previous: tuple[Fraction, Fraction, Frame] | None = None
    for current in frames:
        if previous is not None:
            until = _round_half_up(current[0] * fps)
            for _ in range(emitted, until):
                yield previous[2]
            emitted = max(emitted, until)
        previous = current
    if previous is not None:
        time, duration, frame = previous
        until = max(_round_half_up((time + duration) * fps), 1)
        for _ in range(emitted, until):
            yield frame


def _round_half_up(value: Fraction) -> int:
    return math.floor(value + Fraction(1, 2))
