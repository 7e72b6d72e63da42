"""The inbox of a live source: bounded, evenly thinned, every frame accounted for."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.streaming import Inbox
from wavecore.errors import UsageError


@given(st.integers(1, 8), st.lists(st.one_of(st.integers(0, 5), st.none()), max_size=60))
def test_frames_come_out_in_order_or_are_counted_and_the_newest_stays(capacity, steps):
    inbox, time, out = Inbox(capacity), 0, []
    for step in steps:
        if step is None:
            inbox.put("frame", time)
            time += 10
            assert 1 <= len(inbox) <= capacity
            assert inbox.oldest is not None
        else:
            newest = inbox.arrived - 1
            taken = inbox.take(step)
            out += [arrival.index for arrival in taken]
            if taken and not len(inbox):
                assert taken[-1].index == newest
    out += [arrival.index for arrival in inbox.take(capacity)]
    assert out == sorted(set(out))
    assert len(out) + inbox.dropped == inbox.arrived
    assert len(inbox) == 0 and inbox.oldest is None


def test_an_overloaded_stream_is_thinned_evenly():
    """30 frames a second arrive, 4 in 0.4 s are taken."""
    inbox, out = Inbox(12), []
    for chunk in range(20):
        for index in range(12):
            inbox.put(None, (12 * chunk + index) * 33)
        inbox.thin(4)
        out += [arrival.index for arrival in inbox.take(4)]
    assert {b - a for a, b in pairwise(out[3:])} == {3}
    assert inbox.dropped == 20 * 8


def test_wrong_arguments_are_named():
    with pytest.raises(UsageError, match="capacity"):
        Inbox(0)
    inbox = Inbox(2)
    inbox.put(None, 5)
    with pytest.raises(UsageError, match="time"):
        inbox.put(None, 4)
    with pytest.raises(UsageError, match="count"):
        inbox.thin(0)
