"""The block scheduler: from measured times to the split that the true times ask for."""

from __future__ import annotations

import pytest

from wavecore.control.streaming import BlockScheduler, bottleneck, partition
from wavecore.errors import UsageError


def measured(costs, split):
    rows, layer = [], 0
    for rank, count in enumerate(split):
        rows.append([costs[index][rank] for index in range(layer, layer + count)])
        layer += count
    return rows


@pytest.mark.parametrize(
    ("costs", "extra", "start"),
    [
        ([[3.0, 3.0]] * 30, [15.0, 35.0], (15, 15)),
        ([[10.0, 10.0, 2.0]] * 30, [0.0, 0.0, 0.0], (10, 10, 10)),
        ([[1.0 + (index == 3) * 4, 2.0 + (index == 3) * 8] for index in range(8)], [0.0, 0.0], (4, 4)),
    ],
)
def test_the_optimal_split_is_found_while_streaming(costs, extra, start):
    ranks = len(costs[0])
    scheduler = BlockScheduler(len(costs), ranks, every=8, move_seconds=0.01, horizon=1000)
    split = start
    for _ in range(64):
        scheduler.observe(measured(costs, split), extra)
        split = scheduler.better(split) or split
    assert bottleneck(split, costs, extra) == bottleneck(partition(costs, extra), costs, extra)


def test_a_rank_that_slows_down_loses_layers():
    scheduler = BlockScheduler(8, 2, every=8, horizon=1000)
    split, slow = (4, 4), 1.0
    for step in range(80):
        slow = 3.0 if step > 30 else 1.0
        scheduler.observe(measured([[0.01, 0.01 * slow]] * 8, split), [0.0, 0.0])
        split = scheduler.better(split) or split
    assert split == (6, 2)


def test_equal_ranks_keep_their_layers():
    scheduler = BlockScheduler(8, 2, every=1)
    for step in range(50):
        jitter = 1 + 0.02 * (-1) ** step
        scheduler.observe(measured([[0.01, 0.01 * jitter]] * 8, (4, 4)), [0.0, 0.0])
        assert scheduler.better((4, 4)) is None


def test_wrong_sizes_are_named():
    with pytest.raises(UsageError, match="scheduler"):
        BlockScheduler(2, 3)
