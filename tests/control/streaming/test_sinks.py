"""Adaptive sinks: when one is replaced, which one, and what never counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.streaming import SinkSet
from wavecore.errors import UsageError


def direction(degrees):
    return [np.cos(np.radians(degrees)), np.sin(np.radians(degrees))]


def test_near_identical_chunks_replace_nothing_then_a_different_one_replaces_the_least_similar():
    sinks = SinkSet(3, threshold=0.2)
    for chunk in range(20):
        change = sinks.offer(chunk, direction(0.1 * chunk))
        assert (change is not None) == (chunk < 3)
    change = sinks.offer(20, direction(100))
    assert (change.slot, change.replaced, change.chunk) == (0, 0, 20), "chunk 0 is farthest from 100 degrees"
    assert change.similarity == pytest.approx(np.cos(np.radians(100)))
    assert sinks.chunks == [20, 1, 2]


def test_slots_that_are_empty_are_filled_and_never_compared():
    sinks = SinkSet(3, threshold=1.0)
    changes = [sinks.offer(chunk, direction(0)) for chunk in range(3)]
    assert [(c.slot, c.replaced, c.similarity) for c in changes] == [(i, None, None) for i in range(3)]


def test_static_sinks_never_change_and_no_sinks_need_no_decision():
    static = SinkSet(2, threshold=-1)
    for chunk in range(50):
        static.offer(chunk, direction(180 * chunk))
    assert static.chunks == [0, 1]
    assert SinkSet(0).offer(0, direction(0)) is None


def test_a_new_prompt_replaces_every_sink_once_the_least_similar_first():
    sinks = SinkSet(3, threshold=-1)
    for chunk, degrees in enumerate((0, 20, 40)):
        sinks.offer(chunk, direction(degrees))
    sinks.refresh()
    replaced = [sinks.offer(chunk, direction(50)).replaced for chunk in range(3, 6)]
    assert replaced == [0, 1, 2]
    assert sinks.offer(6, direction(50)) is None
    assert sinks.chunks == [3, 4, 5]


def test_a_prompt_change_before_the_set_is_full_keeps_filling_it():
    sinks = SinkSet(2)
    sinks.offer(0, direction(0))
    sinks.refresh()
    assert sinks.offer(1, direction(0)).replaced is None
    assert sinks.offer(2, direction(0)).replaced == 0
    assert sinks.offer(3, direction(0)) is None


def test_black_chunks_are_alike():
    sinks = SinkSet(1, threshold=0.5)
    sinks.offer(0, [0.0, 0.0])
    assert sinks.offer(1, [0.0, 0.0]) is None
    assert sinks.offer(2, [1.0, 0.0]).replaced == 0


@given(st.lists(st.tuples(st.integers(0, 359), st.booleans()), max_size=40), st.integers(0, 4))
def test_the_set_holds_different_chunks_and_changes_one_at_a_time(offers, slots):
    sinks = SinkSet(slots, threshold=0.5)
    for chunk, (degrees, refresh) in enumerate(offers):
        if refresh:
            sinks.refresh()
        before = list(sinks.chunks)
        change = sinks.offer(chunk, direction(degrees))
        assert len(set(sinks.chunks)) == len(sinks.chunks) <= slots
        if change is None:
            assert sinks.chunks == before
        else:
            expected = [*before, chunk] if change.replaced is None else list(before)
            expected[change.slot] = chunk
            assert sinks.chunks == expected


@pytest.mark.parametrize(("arguments", "name"), [((-1,), "slots"), ((1, 1.5), "threshold")])
def test_wrong_arguments_are_named(arguments, name):
    with pytest.raises(UsageError, match=name):
        SinkSet(*arguments)


def test_an_embedding_is_finite():
    sinks = SinkSet(1)
    sinks.offer(0, [1.0, 0.0])
    with pytest.raises(UsageError, match="embedding"):
        sinks.offer(1, [float("nan"), 0.0])
