"""The block scheduler: when layers should change ranks, from the times measured while a stream runs."""

from __future__ import annotations

from collections.abc import Sequence

from wavecore.control.streaming.partition import worth_moving
from wavecore.errors import UsageError

_MEMORY = 0.8  # weight of what was measured before


class BlockScheduler:
    """Learns what every layer costs on every rank, and says when another split pays.

    A layer is measured on the rank that holds it. On another rank it is taken to cost as much more or less as
    that rank's layers do on average, against what the same layers would cost here.

    Parameters
    ----------
    layers, ranks : int
    every : int
        Micro-steps between two looks.
    move_seconds : float
        What moving one layer costs the stream.
    horizon : int
        Micro-steps over which a move has to pay.
    """

    def __init__(
        self, layers: int, ranks: int, every: int = 32, move_seconds: float = 0.05, horizon: int = 500
    ) -> None:
        if not 1 <= ranks <= layers or every < 1:
            raise UsageError(
                f"scheduler: expected 1 to {layers} ranks and every at least 1, got {ranks}, {every}"
            )
        self._relative = [1.0] * layers  # cost of a layer on a rank of speed 1
        self._speed = [1.0] * ranks  # seconds of a layer of cost 1
        self._extra = [0.0] * ranks
        self._every, self._move_seconds, self._horizon = every, move_seconds, horizon
        self._observed = 0

    def observe(self, seconds: Sequence[Sequence[float]], extra: Sequence[float]) -> None:
        """Take note of a micro-step.

        Parameters
        ----------
        seconds : sequence [ranks] of sequence of float
            Time of each layer that the rank holds.
        extra : sequence [ranks] of float
            Time that the rank spent on other work.
        """
        memory = _MEMORY if self._observed else 0.0
        self._observed += 1
        self._extra = [memory * a + (1 - memory) * b for a, b in zip(self._extra, extra, strict=True)]
        layer = 0
        for rank, times in enumerate(seconds):
            relative = self._relative[layer : layer + len(times)]
            speed = sum(times) / sum(relative)
            self._speed[rank] = memory * self._speed[rank] + (1 - memory) * speed
            if speed > 0:
                for index, time in enumerate(times):
                    fresh = memory * relative[index] + (1 - memory) * time / speed
                    self._relative[layer + index] = fresh
            layer += len(times)

    @property
    def costs(self) -> list[list[float]]:
        """Seconds of each layer on each rank."""
        return [[relative * speed for speed in self._speed] for relative in self._relative]

    def better(self, split: Sequence[int]) -> tuple[int, ...] | None:
        """Return a split that pays, when it is time to look and there is one."""
        if not self._observed or self._observed % self._every:
            return None
        return worth_moving(split, self.costs, self._extra, self._move_seconds, self._horizon)
