"""The playback plan: deadlines of any durations, without rounding that adds up."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.clock import SECOND
from wavecore.control.speculative.plan import PlaybackPlan
from wavecore.errors import UsageError

DURATIONS = st.fractions(Fraction(1, 90), 2, max_denominator=90)


@given(DURATIONS, st.lists(DURATIONS, max_size=5), st.integers(0, 10**9), st.integers(0, 10**6))
def test_deadlines_are_sums_of_durations(duration, first, start, position):
    plan = PlaybackPlan(duration, first)
    plan.start = start
    head, tail = first[:position], max(position - len(first), 0)
    exact = start + (sum(head) + tail * duration) * SECOND
    assert abs(plan.deadline(position) - exact) <= len(head) + 1


@given(DURATIONS, st.lists(DURATIONS, max_size=5), st.integers(-(10**9), 10**12))
def test_position_from_is_the_first_one_due_at_or_after_a_time(duration, first, time):
    plan = PlaybackPlan(duration, first)
    plan.start = 5
    position = plan.position_from(time)
    assert plan.deadline(position) >= time
    assert position == 0 or plan.deadline(position - 1) < time


def test_a_delay_moves_every_deadline():
    plan = PlaybackPlan(0.25, [0.0625])
    plan.start = 0
    before = [plan.deadline(p) for p in range(4)]
    plan.delay(7)
    assert [plan.deadline(p) - d for p, d in enumerate(before)] == [7] * 4


@pytest.mark.parametrize("bad", [0, -0.1, float("nan"), float("inf"), 1e-12])
def test_durations_are_positive(bad):
    with pytest.raises(UsageError, match="duration"):
        PlaybackPlan(bad)
    with pytest.raises(UsageError, match="first durations"):
        PlaybackPlan(0.25, [bad])
