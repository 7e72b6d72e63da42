"""How the stages of a wavefront give each other keys, values and latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Protocol, TypeAlias, get_args

from torch import Tensor

from wavecore.cache import FreePages, PagePool, PageTable, PageView, PoolSize
from wavecore.rounds import Round, Rules, Slot, Stage

ExchangeMode = Literal["sync", "early", "paged"]
EXCHANGE_MODES: tuple[str, ...] = get_args(ExchangeMode)
Transport = Literal["shared", "gloo"]
TRANSPORTS: tuple[str, ...] = get_args(Transport)
# Pages, and un-roped pages, that a slot of the current round fills on this stage.
PagesOf: TypeAlias = Callable[[Slot], tuple[list[int], list[int]]]
# Of the slot of this stage in a round (by its number): the slot as another stage knows it, its pages there.
PagesThere: TypeAlias = Callable[[int, Slot], tuple[Slot, list[int], list[int]]]


class Exchange(Protocol):
    """What a stage calls while it runs a round.

    Modes, all with the same numbers: `sync` exchanges a layer's keys and values and waits for it before
    it attends; `early` sends them on as soon as they are there and receives into a buffer; `paged` does so
    too, but receives into the pages that attention reads.
    """

    def start(self, job: Stream, pool: PagePool, pages_of: PagesOf) -> None:
        """Begin a stream on the pages of `pool`."""

    def latent(self, tick: int, frames: int) -> Tensor:
        """What the stage before made in the round before `tick`, float32 [c, f, h, w]."""

    def no_latent(self, tick: int) -> None:
        """The stage before has made nothing in the round before `tick`."""

    def hand_on(self, tick: int, latent: Tensor) -> None:
        """Give a latent to the stage after this one, at the end of round `tick`."""

    def begin(self, tick: int, index: int, round: Round, pages: PageView | None) -> None:
        """Begin round `index` of the stream, which is `tick` of all streams.

        `round` has the slots that this stage writes or is sent; `pages` are of its own, if it has one.
        """

    def acquire(self, layer: int) -> None:
        """Before the layer's own pages are written."""

    def publish(self, layer: int) -> None:
        """After they are written."""

    def gate(self, layer: int) -> None:
        """Before attention."""

    def attended(self, layer: int) -> None:
        """After attention."""

    def cancel(self, reason: str) -> None:
        """End every wait with an error, from any thread."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""

    def take_records(self) -> list[Mapping[str, Any]]:
        """What happened since the last call: publications, waits, attentions, with layer and edge."""


class Stream(Protocol):
    """What an exchange has to know of a stream."""

    first_tick: int

    def at_work(self, stage: int, tick: int) -> bool:
        """Whether a stage says in round `tick` of all streams how far it has read."""

    def own(self, stage: int, round: Round) -> Slot | None:
        """Slot of a stage in a round, if it has one."""

    def takes(self, reader: int, writer: int, tick: int) -> bool:
        """Whether `reader` is sent what `writer` has written in round `tick` of all streams."""

    def pages_there(self, reader: int, size: PoolSize, pages_of: PagesOf) -> PagesThere:
        """Where a slot of this stage goes on `reader`; `pages_of` says where it is here."""


class Job:
    """A stream as every stage knows it.

    Parameters
    ----------
    rules : Wavefront
        Of its rounds.
    first_tick : int
        Number of its round 0 among the rounds of all streams.
    generations : int
        See `Stage`.
    """

    def __init__(self, rules: Rules, first_tick: int, generations: int) -> None:
        self.rules = rules
        self.first_tick = first_tick
        self.generations = generations
        self.chunks: int | None = None
        self.stages = [Stage(rules, index, generations) for index in range(rules.steps + 1)]
        self._latest: tuple[int, int | None, Round] | None = None

    def round(self, stage: int, index: int) -> Round:
        """Round `index` of the stream as a stage sees it."""
        # A stage asks for the same round for itself and for each stage that it sends to.
        if self._latest is None or self._latest[:2] != (index, self.chunks):
            self._latest = index, self.chunks, self.rules.round(index, self.chunks)
        return self.stages[stage].part(self._latest[2], self.chunks)

    def at_work(self, stage: int, tick: int) -> bool:
        """Whether a stage is at work on this stream in round `tick` of all streams."""
        return self.stages[stage].at_work(tick - self.first_tick, self.chunks)

    def own(self, stage: int, round: Round) -> Slot:
        """See `Stream.own`."""
        return self.stages[stage].own(round)

    def takes(self, reader: int, writer: int, tick: int) -> bool:
        """See `Stream.takes`."""
        return self.at_work(reader, tick)

    def pages_there(self, reader: int, size: PoolSize, pages_of: PagesOf) -> PagesThere:
        """See `Stream.pages_there`."""
        return PeerTable(self, reader, size).slot


class PeerTable:
    """The page table of another stage, kept here so that nobody has to say which page is meant.

    Pages are a function of the rounds alone, so both sides come to the same.
    """

    def __init__(self, job: Job, stage: int, size: PoolSize) -> None:
        self._job = job
        self._stage = stage
        self._table = PageTable(
            FreePages("pages", size.pages), FreePages("un-roped pages", size.unroped_pages)
        )
        self._next = stage
        self._open: Round | None = None

    def slot(self, index: int, own: Slot) -> tuple[Slot, list[int], list[int]]:
        """Another stage's slot in round `index` as this table has it, its pages, and its un-roped pages."""
        while self._next <= index:
            if self._open is not None:
                self._table.end(self._open)
            self._open = self._job.round(self._stage, self._next)
            self._table.begin(self._open)
            self._next += 1
        assert self._open is not None
        slot = next(slot for slot in self._open.slots if slot.stage == own.stage)
        return slot, self._table.write_ids(slot), self._table.unroped_ids(slot)


def runs(pairs: list[tuple[int, int]]) -> list[tuple[int, int, int]]:
    """Page pairs (from, to) joined where both go on: (from, to, count)."""
    joined: list[tuple[int, int, int]] = []
    for source, target in pairs:
        if joined:
            first, to, count = joined[-1]
            if (source, target) == (first + count, to + count):
                joined[-1] = (first, to, count + 1)
                continue
        joined.append((source, target, 1))
    return joined
