"""Which page holds what: free lists and the table of one session. No tensors.

A page is one latent frame of keys and values in every layer. Reordering, eviction and sharing
are changes of the table; the only thing ever computed here is where a moving anchor goes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

from wavecore.errors import WavecoreError
from wavecore.rounds import Key, Round, Rules, Slot

_NOWHERE = -(1 << 62)  # a position at which nobody reads: the copy there is turned before it is read


class PoolExhausted(WavecoreError):
    """A pool has fewer free pages than a round needs."""


class FreePages:
    """Free list of the pages 0 .. capacity - 1.

    Parameters
    ----------
    name : str
        What the pages are called in errors.
    capacity : int, optional
        Number of pages; unlimited when None, to count what a stream needs.
    on_free : callable, optional
        Called with the pages that have become free.
    """

    def __init__(
        self, name: str, capacity: int | None = None, on_free: Callable[[Sequence[int]], None] | None = None
    ) -> None:
        self.name = name
        self.capacity = capacity
        self._on_free = on_free
        # The page that has been free longest goes first, so that a stale read of a poisoned page shows.
        self._free = deque(range(capacity or 0))
        self._used: set[int] = set()
        self.peak = 0

    @property
    def used(self) -> int:
        """Pages in use."""
        return len(self._used)

    def allocate(self, count: int) -> list[int]:
        """Take `count` pages.

        Raises
        ------
        PoolExhausted
            When fewer are free; none is then taken.
        """
        if self.capacity is None:
            fresh = self.used + len(self._free)
            self._free.extend(range(fresh, fresh + count - len(self._free)))
        elif count > len(self._free):
            raise PoolExhausted(
                f"{self.name}: expected {count} free, got {len(self._free)} of {self.capacity}; "
                "give the pool as many as `pages_needed` says for each session"
            )
        taken = [self._free.popleft() for _ in range(count)]
        self._used.update(taken)
        self.peak = max(self.peak, self.used)
        return taken

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; each must be in use."""
        pages = list(pages)
        for page in pages:
            if page not in self._used:
                raise WavecoreError(f"{self.name}: expected a page in use to free, got {page}")
            self._used.remove(page)
            self._free.append(page)
        if self._on_free is not None and pages:
            self._on_free(pages)


class LatePages(FreePages):
    """A free list whose pages are taken anew only when nothing reads or copies them any more.

    Parameters
    ----------
    name, capacity
        As of `FreePages`.
    generations : int
        Pages that were given back after a round can be taken this many rounds later.
    """

    def __init__(self, name: str, capacity: int | None, generations: int) -> None:
        super().__init__(name, capacity)
        self._generations = generations
        self._late: deque[list[int]] = deque([[]])

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; see `FreePages.free`."""
        self._late[-1] += pages

    def turn(self) -> None:
        """A round begins."""
        self._late.append([])
        while len(self._late) > self._generations:
            super().free(self._late.popleft())


@dataclass(frozen=True)
class Rotation:
    """Keys of an anchor to be written at a position: `pages` = rotate(`unroped`, `position`).

    `values_from` lists the pages whose values the new copy takes, where it is a new one.
    """

    unroped: Sequence[int]
    pages: Sequence[int]
    position: int
    values_from: Sequence[int] | None


@dataclass(frozen=True)
class Suffix:
    """Pages that were cut off a table: `Key` and copies as in the table, and un-roped pages."""

    pages: dict[Key, dict[int, list[int]]]
    unroped: dict[Key, list[int]]


class PageTable:
    """Pages of one session, by `Key` and by the temporal position their keys are rotated to.

    Only anchors ever have more than one position, when slots of a round see them at different ones.
    """

    def __init__(self, pages: FreePages, unroped: FreePages) -> None:
        self._free = pages
        self._free_unroped = unroped
        self._pages: dict[Key, dict[int, list[int]]] = {}
        self._unroped: dict[Key, list[int]] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._pages

    def __iter__(self) -> Iterator[Key]:
        return iter(list(self._pages))

    def begin(self, round: Round) -> list[Rotation]:
        """Allocate what the slots of a round write and move the anchors that they read.

        Returns
        -------
        list of Rotation
            To be carried out before the round runs.

        Raises
        ------
        PoolExhausted
            When pages are missing; the table is then as before.
        """
        moves: list[tuple[Key, int, int | None]] = []
        for key, positions in self._wanted(round).items():
            copies = self._pages[key]
            stale = [position for position in copies if position not in positions]
            for position in sorted(positions - copies.keys()):
                moves.append((key, position, stale.pop() if stale else None))
        sizes = [slot.frames for slot in round.slots]
        sizes += [len(self._unroped[key]) for key, _, old in moves if old is None]
        unroped_sizes = [slot.frames for slot in round.slots if slot.keep_unroped]
        pages = self._free.allocate(sum(sizes))
        try:
            unroped = self._free_unroped.allocate(sum(unroped_sizes))
        except PoolExhausted:
            self._free.free(pages)
            raise
        fresh, fresh_unroped = _split(pages, sizes), _split(unroped, unroped_sizes)
        for slot in round.slots:
            self._pages[slot.key] = {slot.frame_start: next(fresh)}
            if slot.keep_unroped:
                self._unroped[slot.key] = next(fresh_unroped)
        return [self._move(key, position, old, fresh) for key, position, old in moves]

    def end(self, round: Round) -> None:
        """Give back what nobody reads after the round."""
        # A stream that has branched comes past releases that it has made before.
        self._drop([key for key in round.releases if key in self._pages])

    def drop_from(self, chunk: int) -> None:
        """Forget everything that `chunk` and later ones have written, for a stream that branches there."""
        self._drop([key for key in self._pages if key.chunk >= chunk])

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget what is there of `keys`, which no round reads or releases any more."""
        self._drop([key for key in keys if key in self._pages])

    def cut(self, position: int) -> Suffix:
        """Take all pages of latents from `position` on out of the table, for a stream that branches there.

        For streams whose chunks are named by the temporal index of their first latent: a chunk in which the
        branch lies keeps the pages before it.
        """
        suffix = Suffix({}, {})
        for key in self:
            kept = position - key.chunk
            length = len(next(iter(self._pages[key].values())))
            if kept <= 0:
                suffix.pages[key] = self._pages.pop(key)
                if key in self._unroped:
                    suffix.unroped[key] = self._unroped.pop(key)
            elif kept < length:
                suffix.pages[key] = {at: pages[kept:] for at, pages in self._pages[key].items()}
                self._pages[key] = {at: pages[:kept] for at, pages in self._pages[key].items()}
                if key in self._unroped:
                    suffix.unroped[key] = self._unroped[key][kept:]
                    del self._unroped[key][kept:]
        return suffix

    def restore(self, suffix: Suffix) -> None:
        """Put back what was cut off; nothing may have been written there since, or it is dropped already."""
        for key, copies in suffix.pages.items():
            if key in self._pages and key in suffix.unroped:
                copies = self._joined(self._pages.pop(key), copies)
            for at, pages in copies.items():
                self._pages.setdefault(key, {}).setdefault(at, []).extend(pages)
        for key, pages in suffix.unroped.items():
            self._unroped.setdefault(key, []).extend(pages)

    def _joined(self, kept: dict[int, list[int]], cut: dict[int, list[int]]) -> dict[int, list[int]]:
        """One copy of an anchor that was cut in two, whose parts may have been turned apart since."""
        head, *heads = kept.values()
        tail, *tails = cut.values()
        self._free.free([page for pages in (*heads, *tails) for page in pages])
        return {_NOWHERE: head + tail}

    def discard(self, suffix: Suffix) -> None:
        """Give the pages of what was cut off back."""
        for copies in suffix.pages.values():
            for pages in copies.values():
                self._free.free(pages)
        for pages in suffix.unroped.values():
            self._free_unroped.free(pages)

    def close(self) -> None:
        """Give every page back."""
        self._drop(list(self._pages))

    def used(self) -> tuple[list[int], list[int]]:
        """Pages and un-roped pages in use, in an order that depends on the rounds alone."""
        pages = [page for copies in self._pages.values() for ids in copies.values() for page in ids]
        return pages, [page for ids in self._unroped.values() for page in ids]

    def write_ids(self, slot: Slot) -> list[int]:
        """Page for each latent frame that a slot writes."""
        return self._pages[slot.key][slot.frame_start]

    def unroped_ids(self, slot: Slot) -> list[int]:
        """Un-roped page for each latent frame of a slot; -1 where none is kept."""
        return self._unroped[slot.key] if slot.keep_unroped else [-1] * slot.frames

    def read_ids(self, slot: Slot) -> list[int]:
        """Pages that a slot reads, in attention order."""
        return [page for read in slot.reads for page in self._pages[read.key][read.position]]

    def _wanted(self, round: Round) -> dict[Key, set[int]]:
        """Positions at which the round reads each key that earlier rounds wrote."""
        written = {slot.key for slot in round.slots}
        for key in written & self._pages.keys():
            raise WavecoreError(f"cache: expected chunk {key.chunk} stage {key.stage} to be written once")
        wanted: dict[Key, set[int]] = {}
        for slot in round.slots:
            for read in slot.reads:
                if read.key not in written:
                    wanted.setdefault(read.key, set()).add(read.position)
        for key, positions in wanted.items():
            if key not in self._pages:
                raise WavecoreError(
                    f"cache: expected chunk {key.chunk} stage {key.stage} for round {round.index}, "
                    "got none: it is not written yet, or released"
                )
            if key not in self._unroped and positions - self._pages[key].keys():
                raise WavecoreError(
                    f"cache: expected chunk {key.chunk} stage {key.stage} to be read where it was written, "
                    f"at {sorted(self._pages[key])}, got {sorted(positions)}"
                )
        return wanted

    def _move(self, key: Key, position: int, old: int | None, fresh: Iterator[list[int]]) -> Rotation:
        """Turn the copy at `old` in place, or make a further one."""
        copies = self._pages[key]
        values_from = None if old is not None else next(iter(copies.values()))
        copies[position] = next(fresh) if old is None else copies.pop(old)
        return Rotation(self._unroped[key], copies[position], position, values_from)

    def _drop(self, keys: Iterable[Key]) -> None:
        for key in keys:
            for pages in self._pages.pop(key).values():
                self._free.free(pages)
            self._free_unroped.free(self._unroped.pop(key, ()))


def _split(pages: list[int], sizes: list[int]) -> Iterator[list[int]]:
    rest = iter(pages)
    return iter([list(islice(rest, size)) for size in sizes])


class PoolSize(NamedTuple):
    """Pages that a stream needs of a pool."""

    pages: int
    unroped_pages: int


def pages_used(rounds: Iterable[Round]) -> PoolSize:
    """Most pages that these rounds hold at a time, found by running a table over them."""
    pages, unroped = FreePages("pages"), FreePages("un-roped pages")
    table = PageTable(pages, unroped)
    for round in rounds:
        table.begin(round)
        table.end(round)
    return PoolSize(pages.peak, unroped.peak)


def pages_needed(rules: Rules, chunks: int | None = None) -> PoolSize:
    """Pages of one session.

    Parameters
    ----------
    rules : Rules
        Kind and parameters of the rounds.
    chunks : int, optional
        Length of the stream; endless when None.
    """
    rules = rules.widest()
    settled = rules.settled()
    if chunks is not None and chunks >= settled:
        chunks = None  # a longer stream holds no more than an endless one, wherever it ends
    count = rules.count(settled if chunks is None else chunks)
    return pages_used(rules.round(index, chunks) for index in range(count))
