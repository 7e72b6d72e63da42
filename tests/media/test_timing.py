"""Resampling of frame times."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from wavecore.media import resample

rates = st.fractions(Fraction(1), Fraction(120), max_denominator=1001)


@settings(deadline=None)
@given(st.integers(1, 200), rates, st.integers(90, 100_000))
def test_constant_rate_at_its_own_rate_is_unchanged(count: int, fps: Fraction, ticks: int) -> None:
    """Even when the container rounds each time to a tick a good deal finer than a frame."""
    ticks = max(ticks, int(3 * fps))
    times = [Fraction(round(i / fps * ticks), ticks) for i in range(count)]
    assert list(resample([(t, 1 / fps, i) for i, t in enumerate(times)], fps)) == list(range(count))


@settings(deadline=None)
@given(st.lists(st.fractions(0, 10, max_denominator=1000), min_size=1, max_size=50), rates)
def test_any_timing(times: list[Fraction], fps: Fraction) -> None:
    times = [t - min(times) for t in sorted(times)]
    duration = Fraction(1, 25)
    given_frames = list(resample([(t, duration, i) for i, t in enumerate(times)], fps))
    assert given_frames == sorted(given_frames)
    assert abs(len(given_frames) - (times[-1] + duration) * fps) <= 1
    for k, index in enumerate(given_frames):
        assert times[index] * fps <= k + Fraction(1, 2), "no frame is shown more than half a period early"
        if index + 1 < len(times):
            assert k < times[index + 1] * fps + Fraction(1, 2), "nor when the next one is due"


def test_nothing_gives_nothing() -> None:
    assert list(resample([], Fraction(16))) == []
