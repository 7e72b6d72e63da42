"""Layers over the ranks of a ring: the contiguous split whose slowest rank is fastest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

from wavecore.errors import UsageError


def partition(costs: Sequence[Sequence[float]], extra: Sequence[float] | None = None) -> tuple[int, ...]:
    """Split blocks over ranks so that the largest total of a rank is least.

    Dynamic programming over (ranks, blocks), O(ranks * blocks^2). Every rank gets at least one block. Among
    splits of equal maximum the one whose further ranks are also lightest, from the first rank on, is taken.

    Parameters
    ----------
    costs : sequence [blocks] of sequence [ranks] of float
        Time of each block on each rank.
    extra : sequence [ranks] of float, optional
        Time that a rank spends on other work (encoding, decoding); 0 when not given.

    Returns
    -------
    tuple of int [ranks]
        Blocks of each rank, in order.

    Raises
    ------
    UsageError
        Fewer blocks than ranks, ragged rows, or a time that is negative or not finite.
    """
    rows = [list(row) for row in costs]
    ranks = len(rows[0]) if rows else 0
    added = [0.0] * ranks if extra is None else list(extra)
    if ranks == 0 or any(len(row) != ranks for row in rows) or len(added) != ranks:
        raise UsageError("costs: expected [blocks][ranks] and extra [ranks], of the same number of ranks")
    if len(rows) < ranks:
        raise UsageError(f"costs: expected at least {ranks} blocks for {ranks} ranks, got {len(rows)}")
    for value in (*added, *(value for row in rows for value in row)):
        if not math.isfinite(value) or value < 0:
            raise UsageError(f"costs: expected finite times of at least 0, got {value}")
    blocks = len(rows)
    sums = [list(accumulate((row[rank] for row in rows), initial=0.0)) for rank in range(ranks)]

    def load(rank: int, start: int, end: int) -> float:
        return added[rank] + sums[rank][end] - sums[rank][start]

    # best[rank][start]: the least maximum of ranks rank.. over blocks start.., and where rank ends.
    best = [[(math.inf, 0)] * (blocks + 1) for _ in range(ranks + 1)]
    best[ranks][blocks] = (-math.inf, blocks)
    for rank in reversed(range(ranks)):
        for start in range(rank, blocks - (ranks - rank) + 1):
            last = blocks - (ranks - rank - 1)
            best[rank][start] = min(
                (max(load(rank, start, end), best[rank + 1][end][0]), end)
                for end in range(start + 1, last + 1)
            )
    counts, start = [], 0
    for rank in range(ranks):
        end = best[rank][start][1]
        counts.append(end - start)
        start = end
    return tuple(counts)


def bottleneck(
    counts: Sequence[int], costs: Sequence[Sequence[float]], extra: Sequence[float] | None = None
) -> float:
    """Time of the slowest rank under a split of `counts` blocks a rank; arguments as for `partition`."""
    added = [0.0] * len(counts) if extra is None else list(extra)
    ends = list(accumulate(counts))
    return max(
        added[rank] + sum(row[rank] for row in costs[end - count : end])
        for rank, (end, count) in enumerate(zip(ends, counts, strict=True))
    )


def worth_moving(
    present: Sequence[int],
    costs: Sequence[Sequence[float]],
    extra: Sequence[float],
    move_seconds: float,
    horizon: int,
    least_gain: float = 0.05,
) -> tuple[int, ...] | None:
    """Return a better split than the present one if it pays for the move.

    Parameters
    ----------
    present : sequence of int [ranks]
        Blocks of each rank.
    costs, extra
        Measured times, as for `partition`.
    move_seconds : float
        Time that moving one block costs the stream.
    horizon : int
        Micro-steps over which the gain has to pay for the move.
    least_gain : float
        Share of the slowest rank's time below which nothing is moved, against moves back and forth.
    """
    found = partition(costs, extra)
    before, after = bottleneck(present, costs, extra), bottleneck(found, costs, extra)
    moved = sum(abs(a - b) for a, b in zip(accumulate(present), accumulate(found), strict=True))
    gain = before - after
    if not moved or gain < least_gain * before or gain * horizon < moved * move_seconds:
        return None
    return found
