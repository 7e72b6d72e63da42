"""Interleaved timing of two functions, and the ceilings of the machine that figures are given against."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from machine import read_result, write_result

__all__ = ["Ceilings", "Pair", "measure_pair", "read_result", "write_result"]

Function = Callable[[], object]


@dataclass(frozen=True)
class Pair:
    """Microseconds of our function and of the other: lower and upper quartile of interleaved runs."""

    ours: tuple[float, float]
    other: tuple[float, float]

    @property
    def ratio(self) -> float:
        """How many times faster ours is when the machine is quiet (lower quartiles)."""
        return self.other[0] / self.ours[0]

    @property
    def busy_ratio(self) -> float:
        """The same of the upper quartiles."""
        return self.other[1] / self.ours[1]


def measure_pair(ours: Function, other: Function, seconds: float = 0.6) -> Pair:
    """Time both in turn, in short runs of about a millisecond each, for `seconds` and at least five runs.

    One thread is timed by the processor time that it used, so that other work on the machine counts less;
    several threads are timed by the clock on the wall.
    """
    clock = _clock()
    loops = [max(1, int(1e-3 / _once(function))) for function in (ours, other)]
    times: tuple[list[float], list[float]] = ([], [])
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times[0]) < 5:
        for function, count, into in zip((ours, other), loops, times, strict=True):
            start = clock()
            for _ in range(count):
                function()
            into.append((clock() - start) / count * 1e6)
    return Pair(*(_quartiles(values) for values in times))


def _clock() -> Callable[[], float]:
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter


def _once(function: Function) -> float:
    clock = _clock()
    for _ in range(2):
        function()
    start = clock()
    function()
    return clock() - start


def _quartiles(values: list[float]) -> tuple[float, float]:
    values = sorted(values)
    return values[len(values) // 4], values[len(values) * 3 // 4]


class Ceilings:
    """What this machine reaches at the current number of threads: matrix products, and copies.

    A copy is of as many bytes as an operation moves: what fits a cache is copied several times as fast.
    """

    def __init__(self) -> None:
        a, b = torch.randn(2, 1024, 1024)
        best = min(_once(lambda: a @ b) for _ in range(5))
        self.float32_gflops = 2 * 1024**3 / best / 1e9

    def copy_gigabytes(self, moved: int) -> float:
        """Gigabytes per second of a copy that reads half of `moved` bytes and writes the other half."""
        source, target = torch.ones(2, moved // 2, dtype=torch.uint8)
        loops = max(1, 2**24 // moved)

        def copies() -> None:
            for _ in range(loops):
                target.copy_(source)

        return moved * loops / min(_once(copies) for _ in range(9)) / 1e9
