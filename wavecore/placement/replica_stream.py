"""One stream on replicas, as the process of the session sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from torch import Tensor

from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.rounds import NoiseLevel, Rules

if TYPE_CHECKING:
    from wavecore.placement.replicas import Replicas


class ReplicaStream:
    """One stream on `Replicas`: chunks enter, final latents come out in order.

    Not made by hand; see `Replicas.stream`.
    """

    def __init__(
        self,
        replicas: Replicas,
        number: int,
        rules: Rules,
        levels: Sequence[NoiseLevel],
        seed: int,
        chunks: int | None,
    ) -> None:
        self._replicas, self.number = replicas, number
        self.rules, self.levels, self.seed = rules, levels, seed
        self.chunks = chunks
        self.entered = 0
        self.taken = 0
        self.first_tick = 0
        self._begun = self._ended = False
        self._complete: dict[int, Tensor] = {}
        self._versions: set[int] = set()

    @property
    def wants_chunk(self) -> bool:
        """Whether another chunk may enter: no more are under way than keep every rank busy."""
        replicas = self._replicas
        if self._ended or (self.chunks is not None and self.entered >= self.chunks):
            return False
        if replicas._waiting[0] is not self:
            return False
        return self.entered - self.taken < self.rules.steps + 2

    def enter(
        self,
        version: int,
        text: TextContext,
        source: Tensor | None = None,
        levels: Sequence[NoiseLevel] | None = None,
    ) -> None:
        """Let the next chunk enter the first stage.

        Parameters
        ----------
        version : int
            Number of its condition, which does not fall from chunk to chunk.
        text : TextContext
            The condition, with a batch of 1.
        source : Tensor [c, f, h, w], optional
            Input of its first stage, float32; noise alone when not given.
        levels : sequence of NoiseLevel, optional
            Its own, where they differ from the stream's.
        """
        replicas = self._replicas
        replicas.check()
        with replicas._ticks.entering() as tick:
            if not self._begun:
                self.first_tick, self._begun = tick, True
                replicas._tell_all(
                    protocol.Begin(self.number, self.rules, self.levels, self.seed, tick, self.chunks)
                )
            if version not in self._versions:
                self._versions.add(version)
                replicas._tell_all(protocol.Text.of(version, text.keys, text.values))
            entering = protocol.Enter(self.entered, version, levels)
            if source is None:
                replicas._tell_all(entering)
            else:
                first = replicas.map.rank(0, tick)
                replicas._tell(replace(entering, source=source.cpu().numpy()), first)
                replicas._tell(entering, *(rank for rank in range(replicas.map.ranks) if rank != first))
        self.entered += 1
        if self.entered == self.chunks:
            self._leave()

    def end(self) -> None:
        """Let no further chunk enter; those under way are finished."""
        if self._ended:
            return
        self.chunks = self.entered
        self._leave(protocol.End(self.entered))

    def _leave(self, last: protocol.End | None = None) -> None:
        """Give way to the next stream, whose first round follows right after."""
        self._ended = True
        if self._begun:
            with self._replicas._ticks.leaving():
                if last is not None:
                    self._replicas._tell_all(last)
        with self._replicas._lock:
            self._replicas._waiting.remove(self)
            self._replicas._lock.notify_all()

    def take(self, wait: bool = True, until: Callable[[], bool] = lambda: False) -> tuple[int, Tensor] | None:
        """Wait for the next final latent [c, f, h, w]; None when the stream is over.

        Returns with None also while a chunk may enter that has not, if not to `wait`, and once `until` holds,
        which is looked at after every `Replicas.wake`.

        Raises
        ------
        WavecoreError
            A rank has ended; names it.
        """
        replicas = self._replicas
        with replicas._lock:
            while True:
                if self.taken in self._complete:
                    chunk = self.taken
                    self.taken += 1
                    if self.over:
                        del replicas._streams[self.number]
                    return chunk, self._complete.pop(chunk)
                if self.over:
                    return None
                replicas.check()
                if self.wants_chunk or not wait or until():
                    return None
                replicas._lock.wait(1.0)

    @property
    def over(self) -> bool:
        """Whether every chunk was taken and no more can enter."""
        return self._ended and self.taken >= self.entered

    def close(self) -> None:
        """Give the stream up: what is under way is finished and thrown away."""
        with suppress(WavecoreError):
            self.end()
            self._replicas._streams.pop(self.number, None)


class ReplicaPlacement:
    """What a session asks of its placement while its rounds run in other processes: conditions of prompts."""

    depth = 0

    def __init__(self, dit: CausalWanDiT) -> None:
        self.encode_text = dit.encode_text

    def open(self, *_: object) -> ReplicaPlacement:
        """Ready for a session."""
        return self

    def close(self) -> None:
        """Nothing is held here."""
