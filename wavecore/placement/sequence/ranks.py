"""Sequence parallelism behind the interface of a session: a process a rank, every round split over all."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from torch import Tensor

from wavecore.arguments import positive, whole
from wavecore.cache import PoolSize
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.nursery import Nursery
from wavecore.placement.sequence.group import SequenceMode, check_split
from wavecore.placement.sequence.messages import Drop, Estimates, Join, Run
from wavecore.rounds import Key, NoiseLevel, Round, Rules

_GRACE = 5.0  # seconds that ranks have to end by themselves


@dataclass(frozen=True, kw_only=True)
class SequenceOptions:
    """How the tokens of a chunk are split.

    Attributes
    ----------
    ranks : int
    mode : "ulysses" or "ring"
    timeout : float
        Seconds after which a rank that does not answer is an error.
    threads : int
        Of each rank.
    cores : sequence of int, optional
        Cores to pin ranks to, in turn. Not pinned when left out.
    """

    ranks: int = 2
    mode: SequenceMode = "ulysses"
    timeout: float = 60.0
    threads: int = 1
    cores: Sequence[int] | None = None

    def __post_init__(self) -> None:
        whole("devices", self.ranks, 1)
        whole("threads", self.threads, 1)
        positive("timeout", self.timeout)


class SequencePlacement:
    """Runs the rounds of one stream on ranks that split the tokens of every slot.

    The same latents as of `LocalPlacement` up to rounding (1e-5): sums go over the ranks in another order.

    Parameters
    ----------
    dit : CausalWanDiT
        On the CPU.
    options : SequenceOptions
    nursery : Nursery, optional
        Where processes come from, when several placements follow each other; else one is made.

    Raises
    ------
    UsageError
        Ranks that do not divide heads or tokens, a model that is not on the CPU, or keys held in int8.
    """

    depth = 1

    def __init__(self, dit: CausalWanDiT, options: SequenceOptions, nursery: Nursery | None = None) -> None:
        device = dit.patch_embedding.weight.device
        if device.type != "cpu":
            raise UsageError(f"placement: expected a model on the cpu for sequence, got {device}")
        if dit.int8_keys:
            raise UsageError("placement: expected keys in the dtype of the model for sequence, got int8 ones")
        check_split(options.mode, options.ranks, dit.config)
        self.encode_text = dit.encode_text
        self.probe: int | None = None  # of streams that restyle, which run elsewhere
        self.embeddings: dict[int, Tensor] = {}
        self._dit, self._options = dit, options
        self._failure: str | None = None
        self._closed = False
        self._ended: set[int] = set()
        self._changed = threading.Condition()
        self._texts: dict[int, TextContext] = {}
        self._texts_made = 0
        self._nursery, self._own_nursery = nursery, nursery is None
        self._pids: list[int] = []
        self._connections: list[Connection] = []

    def open(self, rules: Rules, pages: PoolSize, height: int, width: int) -> SequencePlacement:
        """Start the ranks for a stream; parameters as of `Ring.open`."""
        options = self._options
        check_split(options.mode, options.ranks, self._dit.config, self._dit.tokens_per_frame(height, width))
        nursery = self._nursery = self._nursery or Nursery(self._dit)
        try:
            children = nursery.fork(options.ranks, self._on_exit)
            self._pids = [pid for pid, _ in children]
            self._connections = [connection for _, connection in children]
            port = 0
            for rank, connection in enumerate(self._connections):
                core = None if options.cores is None else options.cores[rank % len(options.cores)]
                shape = (pages, height, width)
                join = Join(
                    rank, options.ranks, options.mode, port, options.timeout, options.threads, core, *shape
                )
                protocol.send(connection, join)
                if rank == 0:
                    port = self._receive(0)
        except BaseException:
            self.close()
            raise
        return self

    # -- what a session asks of every placement --------------------------------------------

    def submit(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> None:
        """Begin a round; parameters as for `LocalPlacement.run`."""
        numbers: dict[int, int] = {}
        new: dict[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = {}
        for slot in round.slots:
            context = text[slot.chunk]
            known = next((number for number, other in self._texts.items() if other is context), None)
            if known is None:
                known = self._texts_made
                self._texts_made += 1
                self._texts[known] = context
                new[known] = context.keys, context.values
            numbers[slot.chunk] = known
        self._texts = {number: self._texts[number] for number in set(numbers.values())}
        self._tell(Run(round, dict(latents), levels, numbers, new))

    def collect(self) -> dict[int, Tensor]:
        """Wait for the results of the oldest round submitted.

        Raises
        ------
        WavecoreError
            A rank has ended; names it.
        """
        came = self._receive(0)
        assert isinstance(came, Estimates)
        return dict(came.latents)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget keys that no further round reads."""
        gone = tuple(keys)
        if gone:
            self._tell(Drop(gone))

    def close(self) -> None:
        """End the ranks."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
        for connection in self._connections:
            connection.close()
        with self._changed:
            self._changed.wait_for(lambda: len(self._ended) == len(self._pids), timeout=_GRACE)
        if self._nursery is not None:
            self._nursery.kill([pid for rank, pid in enumerate(self._pids) if rank not in self._ended])
            if self._own_nursery:
                self._nursery.close()

    # -- messages --------------------------------------------------------------------------

    def _tell(self, message: Any) -> None:
        self._check()
        for connection in self._connections:
            try:
                protocol.send(connection, message)
            except OSError:
                raise self._reason() from None

    def _receive(self, rank: int) -> Any:
        deadline = time.monotonic() + self._options.timeout
        while not self._connections[rank].poll(0.05):
            self._check()
            if time.monotonic() > deadline:
                raise WavecoreError(f"rank {rank}: expected an answer within {self._options.timeout:g} s")
        with suppress(EOFError, OSError):
            message = protocol.receive(self._connections[rank])
            if not isinstance(message, protocol.Failed):
                return message
        raise self._reason()

    def _reason(self) -> WavecoreError:
        """Why ranks have ended: the first of them to go, not one that missed it."""
        with self._changed:
            self._changed.wait_for(lambda: self._failure is not None, timeout=_GRACE)
        return WavecoreError(self._failure or "placement: expected ranks that run, got none")

    def _check(self) -> None:
        if self._failure is not None:
            raise WavecoreError(self._failure)
        if self._closed:
            raise UsageError("placement: expected an open session, got a closed one")

    def _on_exit(self, rank: int, how: str) -> None:
        with self._changed:
            self._ended.add(rank)
            if not self._closed and self._failure is None:
                self._failure = f"rank {rank} of the sequence, process {self._pids[rank]}: {how}"
            self._changed.notify_all()
        if not self._closed and self._nursery is not None:
            self._nursery.kill([pid for other, pid in enumerate(self._pids) if other not in self._ended])
