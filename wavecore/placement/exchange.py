"""How the ranks of a wavefront give each other keys, values and latents."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, NamedTuple, Protocol, get_args

from torch import Tensor

from wavecore.cache import LatePages, PageTable, PageView, PoolSize
from wavecore.rounds import Round, Rules, Share, Slot, StageMap

ExchangeMode = Literal["sync", "early", "paged"]
EXCHANGE_MODES: tuple[str, ...] = get_args(ExchangeMode)
Transport = Literal["shared", "gloo"]
TRANSPORTS: tuple[str, ...] = get_args(Transport)


class Target(NamedTuple):
    """Where the keys and values of a slot go: pages, and un-roped pages, of another rank.

    `reader` is the first stage there that reads them in this tick, or their own where none does.
    """

    rank: int
    reader: int
    pages: Sequence[int]
    unroped: Sequence[int]


class Arrival(NamedTuple):
    """Keys and values of a slot that another rank sends to pages here.

    `rotate` turns, in one layer, keys that come without rotation.
    """

    slot: Slot
    rank: int
    pages: Sequence[int]
    unroped: Sequence[int]
    rotate: Callable[[int], None] | None = None


class Exchange(Protocol):
    """What a rank calls in every tick.

    First `expect`, then for each of its slots `begin` and the calls of every layer; once without a slot where
    it has none.

    Modes, all with the same numbers: `sync` exchanges a layer's keys and values and waits for it before
    it attends; `early` sends them on as soon as they are there and receives into a buffer; `paged` does so
    too, but receives into the pages that attention reads.
    """

    def expect(self, tick: int, arrivals: Sequence[Arrival]) -> None:
        """Begin a tick in which others send this."""

    def begin(
        self,
        tick: int,
        slot: Slot | None,
        pages: PageView | None,
        targets: Sequence[Target],
        arrivals: Sequence[Arrival],
        last: bool,
    ) -> None:
        """Begin a slot of a tick.

        Parameters
        ----------
        tick : int
            Number of the round among those of all streams, from 1.
        slot : Slot or None
        pages : PageView
            Of the slot.
        targets, arrivals : sequence
            Who is sent its keys and values, and what has to be there before its attention.
        last : bool
            Whether it is the last of this rank in the tick.
        """

    def acquire(self, layer: int) -> None:
        """Before the layer's own pages are written."""

    def publish(self, layer: int) -> None:
        """After they are written."""

    def gate(self, layer: int) -> None:
        """Before attention."""

    def attended(self, layer: int) -> None:
        """After attention."""

    def latent(self, tick: int, stage: int, rank: int, frames: int) -> Tensor:
        """What `rank` has handed on for a stage in the tick before, float32 [c, f, h, w]."""

    def hand_on(self, tick: int, stage: int, rank: int, latent: Tensor) -> None:
        """Give `rank` a latent for a stage, which it computes in the tick after this one."""

    def cancel(self, reason: str) -> None:
        """End every wait with an error, from any thread."""

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""

    def take_records(self) -> list[Mapping[str, Any]]:
        """What happened since the last call: publications, waits, attentions, with layer and edge."""


class Job:
    """A stream as every rank knows it.

    Parameters
    ----------
    rules : Wavefront
        Of its rounds.
    map : StageMap
    first_tick : int
        Number of its round 0 among the rounds of all streams.
    chunks : int, optional
        Its length, as far as it is known.
    """

    def __init__(self, rules: Rules, map: StageMap, first_tick: int, chunks: int | None = None) -> None:
        self.rules, self.map, self.first_tick = rules, map, first_tick
        self.chunks = chunks
        self.shares = [Share(rules, map, rank) for rank in range(map.ranks)]
        self._latest: tuple[int, int | None, Round] | None = None

    def part(self, rank: int, tick: int) -> Round:
        """What concerns a rank of the round in a tick."""
        index = tick - self.first_tick
        # A rank asks for the same round for itself and for each one that it sends to.
        if self._latest is None or self._latest[:2] != (index, self.chunks):
            self._latest = index, self.chunks, self.rules.round(index, self.chunks)
        return self.shares[rank].part(self._latest[2], tick, self.chunks)

    def over(self, rank: int, tick: int) -> bool:
        """Whether a rank has no part in what comes after a tick."""
        if self.chunks is None:
            return False
        return tick - self.first_tick >= self.chunks - 1 + max(self.map.stages_of(rank))


class RankPages:
    """Free pages of a rank, for itself or as another one keeps track of them.

    Pages are a function of the rounds alone, so everybody comes to the same.
    """

    def __init__(self, size: PoolSize | None, generations: int) -> None:
        pages, unroped = (None, None) if size is None else size
        self.pages = LatePages("pages", pages, generations)
        self.unroped = LatePages("un-roped pages", unroped, generations)

    def turn(self) -> None:
        """A tick begins."""
        self.pages.turn()
        self.unroped.turn()

    def table(self) -> PageTable:
        """For one more stream."""
        return PageTable(self.pages, self.unroped)


class PeerTable:
    """The pages of one stream on another rank, kept here so that nobody has to say which page is meant."""

    def __init__(self, job: Job, rank: int, pages: RankPages) -> None:
        self._job, self.rank = job, rank
        self._table = pages.table()
        self._round: Round | None = None

    def begin(self, tick: int) -> None:
        """Begin a tick."""
        self._tick = tick
        self._round = self._job.part(self.rank, tick)
        self._table.begin(self._round)

    def target(self, own: Slot) -> Target | None:
        """Where a slot of this rank goes there, if it goes there."""
        assert self._round is not None
        slot = next((slot for slot in self._round.slots if slot.stage == own.stage), None)
        if slot is None:
            return None
        readers = (other for other in self._round.slots if any(read.key == own.key for read in other.reads))
        reader = next(readers, own)
        return Target(self.rank, reader.stage, self._table.write_ids(slot), self._table.unroped_ids(slot))

    def end(self) -> None:
        """End the tick."""
        assert self._round is not None
        self._table.end(self._round)

    def close(self) -> None:
        """Give every page back."""
        self._table.close()


def pool_sizes(rules: Rules, map: StageMap, generations: int, chunks: int | None = None) -> list[PoolSize]:
    """Pages of every rank for streams that follow each other, found by running tables over their rounds."""
    longest = rules.settled() + generations + 1
    longest = longest if chunks is None else min(chunks, longest)
    # Short ones too, since the first chunk of each may be kept without rotation.
    lengths = [(longest, longest), (longest, *(generations + 1) * (1,))]
    sizes = []
    for rank in range(map.ranks):
        # Where stages go from rank to rank, a stream may begin with any of them.
        offsets = range(map.ranks) if map.in_turn else range(1)
        used = [
            _pages_used(rules, map, rank, generations, 1 + offset, some)
            for offset in offsets
            for some in lengths
        ]
        sizes.append(PoolSize(max(size.pages for size in used), max(size.unroped_pages for size in used)))
    return sizes


def _pages_used(
    rules: Rules, map: StageMap, rank: int, generations: int, first: int, lengths: Sequence[int]
) -> PoolSize:
    """Most pages that a rank holds while streams follow each other."""
    pages = RankPages(None, generations)
    starts = accumulate(lengths, initial=first)
    jobs = [Job(rules, map, start, length) for start, length in zip(starts, lengths, strict=False)]
    tables = [(job, pages.table()) for job in jobs]
    for tick in range(first, jobs[-1].first_tick + rules.count(lengths[-1])):
        pages.turn()
        at_work = [
            (job, table) for job, table in tables if job.first_tick <= tick and not job.over(rank, tick - 1)
        ]
        for job, table in at_work:
            table.begin(job.part(rank, tick))
        for job, table in at_work:
            table.end(job.part(rank, tick))
            if job.over(rank, tick):
                table.close()
    return PoolSize(pages.pages.peak, pages.unroped.peak)


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
