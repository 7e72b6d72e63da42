"""The optimal contiguous split: published examples, brute force, and when a move pays."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import wavecore as wc
from wavecore.control.streaming import bottleneck, partition, worth_moving
from wavecore.errors import UsageError


def test_extra_work_of_the_end_ranks():
    costs, extra = [[3.0, 3.0]] * 30, [15.0, 35.0]
    assert wc.control.partition(costs, extra) == (18, 12)
    assert bottleneck((18, 12), costs, extra) == 71
    assert 18 * 3 + 15 == 69


def test_ranks_of_different_speed():
    """A rule of one cost a block gives 7/6/17 and 70 ms here."""
    costs = [[10.0, 10.0, 2.0]] * 30
    assert partition(costs) == (4, 4, 22)
    assert bottleneck((4, 4, 22), costs) == 44
    assert bottleneck((7, 6, 17), costs) == 70


TIMES = st.floats(0, 10)


@given(st.data(), st.integers(1, 4), st.integers(0, 4))
def test_no_split_is_better(data, ranks, more):
    blocks = ranks + more
    row = st.lists(TIMES, min_size=ranks, max_size=ranks)
    costs = data.draw(st.lists(row, min_size=blocks, max_size=blocks))
    extra = data.draw(row)
    found = partition(costs, extra)
    assert sum(found) == blocks and min(found) >= 1
    every = [
        tuple(b - a for a, b in pairwise((0, *cuts, blocks)))
        for cuts in combinations(range(1, blocks), ranks - 1)
    ]
    assert bottleneck(found, costs, extra) == min(bottleneck(split, costs, extra) for split in every)


@pytest.mark.parametrize(
    ("costs", "extra"),
    [([], None), ([[1.0], [1.0, 2.0]], None), ([[1.0, 1.0]], None), ([[1.0]], [1.0, 2.0]), ([[-1.0]], None)],
)
def test_wrong_costs_are_named(costs, extra):
    with pytest.raises(UsageError, match="costs"):
        partition(costs, extra)


def test_a_move_has_to_pay():
    costs, extra, even = [[3.0, 3.0]] * 30, [15.0, 35.0], (15, 15)
    assert worth_moving(even, costs, extra, move_seconds=1.0, horizon=100) == (18, 12)
    assert worth_moving(even, costs, extra, move_seconds=1000.0, horizon=100) is None, "too short a stream"
    assert worth_moving((18, 12), costs, extra, 0.0, 10**9) is None, "nothing to move"
    slightly = [[3.0, 3.0]] * 29 + [[3.2, 3.2]]
    assert worth_moving((18, 12), slightly, extra, 0.0, 10**9) is None, "no back and forth for a little"
