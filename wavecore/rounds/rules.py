"""What the three kinds of rounds have in common: chunk lengths, history, anchor."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from wavecore.errors import UsageError
from wavecore.rounds.data import Key, Read, Round, Slot

RoundsKind = Literal["wavefront", "sequential", "stream_batch"]
AnchorPosition = Literal["adjacent", "reference", "absolute"]


@dataclass(frozen=True, kw_only=True)
class Rules(ABC):
    """Parameters that, with a round's number, determine the round.

    Parameters
    ----------
    steps : int
        Denoising stages N.
    chunk_frames : int
        Latent frames of a chunk.
    first_chunk_frames : int, optional
        Latent frames of chunk 0 where they differ (StreamDiffusionV2: 2, then 1).
    anchor_chunks : int
        Chunks from the stream's beginning that are never dropped; 0 for none.
    anchor_position : "adjacent", "reference" or "absolute"
        Temporal index of the anchor: just before the oldest other chunk that is read (its true
        position until chunks are dropped); the rule of the published Wave Forcing runtime, which
        does not count the live store and so overlaps it; or its true position for ever.
    retain : int
        Chunks kept beyond what any context reads, so that the stream can branch that far back
        from the furthest chunk it has reached.
    branches : tuple of (chunk, round)
        Where the stream has branched: that chunk entered anew in that round, and every later
        chunk after it. See `branch`.
    """

    steps: int
    chunk_frames: int = 3
    first_chunk_frames: int | None = None
    anchor_chunks: int = 1
    anchor_position: AnchorPosition = "adjacent"
    retain: int = 0
    branches: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        for name in ("steps", "chunk_frames", "first_chunk_frames"):
            at_least(name, getattr(self, name), 1)
        at_least("anchor_chunks", self.anchor_chunks, 0)
        at_least("retain", self.retain, 0)
        allowed = self._anchor_positions()
        if self.anchor_position not in allowed:
            raise UsageError(
                f"anchor_position: expected one of {', '.join(allowed)}, got {self.anchor_position!r}"
            )

    def _anchor_positions(self) -> tuple[str, ...]:
        return "adjacent", "absolute"

    @property
    def kind(self) -> str:
        """Its name, as an argument `rounds` has it."""
        return re.sub(r"(?<=.)(?=[A-Z])", "_", type(self).__name__).lower()

    # -- to be given by each kind --------------------------------------------------------

    @abstractmethod
    def round(self, index: int, chunks: int | None = None) -> Round:
        """Round `index` of a stream of `chunks` chunks; None while its end is not known."""

    @abstractmethod
    def rounds_held(self) -> int:
        """Rounds from the one in which a chunk enters to the last one that works on it, both included."""

    @abstractmethod
    def settled(self) -> int:
        """Chunks after which every further chunk needs the same context as the one before it."""

    def widest(self) -> Rules:
        """Rules whose pages are enough for these: the same, where chunks keep their length."""
        return self

    @property
    def period(self) -> int:
        """Rounds from one chunk's entry to the next one's."""
        return 1

    # -- time ----------------------------------------------------------------------------

    def _pieces(self) -> list[tuple[int, int, int | None]]:
        """(first chunk, its round, chunk that the next piece begins with), the latest piece first."""
        if not self.branches:
            return [(0, 0, None)]
        starts = [(0, 0), *self.branches]
        ends = [*(chunk for chunk, _ in self.branches), None]
        return [(*start, end) for start, end in zip(starts, ends, strict=True)][::-1]

    def entry(self, chunk: int) -> int:
        """Round in which a chunk enters."""
        first, index = next((first, index) for first, index, _ in self._pieces() if first <= chunk)
        return index + (chunk - first) * self.period

    def entered(self, index: int) -> int:
        """Chunks of an endless stream that have entered before round `index`."""
        for first, start, end in self._pieces():
            if start < index:
                entered = first - (start - index) // self.period
                return entered if end is None else min(entered, end)
        return 0

    def entering(self, index: int) -> int | None:
        """Chunk that enters in round `index` of an endless stream, if any."""
        chunk = self.entered(index)
        return chunk if self.entered(index + 1) > chunk else None

    def count(self, chunks: int) -> int:
        """Rounds that a stream of `chunks` chunks takes."""
        return self.entry(chunks - 1) + self.rounds_held() if chunks else 0

    def branch(self, chunk: int, index: int) -> Rules:
        """The same rules for a stream in which `chunk` enters anew in round `index`.

        Older chunks go on where they are, and in a sequential stream are finished first. What
        `chunk` and later ones wrote must be dropped from the cache. Only rounds from `index` on
        are determined by the result.
        """
        if not 0 <= chunk <= self.entered(index):
            raise UsageError(
                f"chunk: expected one of the {self.entered(index)} that have entered before round {index}, "
                f"or the next, got {chunk}"
            )
        if chunk:
            index = max(index, self.entry(chunk - 1) + self.period)
        kept = tuple(branch for branch in self.branches if branch[0] < chunk)
        return replace(self, branches=(*kept, (chunk, index)))

    def delay(self, index: int) -> Rules:
        """The same rules for a stream in which no chunk enters in round `index`; older ones go on.

        Only rounds from `index` on are determined by the result.
        """
        delayed = self.branch(self.entered(index), index + 1)
        # Where chunks entered that are through by now is forgotten, or an endless stream would fill memory.
        needed = index - 2 * self.rounds_held() - self.period
        branches = delayed.branches
        kept = [i for i in range(len(branches)) if i + 1 == len(branches) or branches[i + 1][1] >= needed]
        return replace(delayed, branches=tuple(branches[i] for i in kept))

    # -- shared --------------------------------------------------------------------------

    def frames(self, chunk: int) -> int:
        """Latent frames of a chunk."""
        first = self.first_chunk_frames
        return first if chunk == 0 and first is not None else self.chunk_frames

    def start(self, chunk: int) -> int:
        """Temporal index of a chunk's first latent frame."""
        return 0 if chunk == 0 else self.frames(0) + (chunk - 1) * self.chunk_frames

    def chunks(self, frames: int) -> int:
        """Fewest chunks, at least one, that hold `frames` latent frames."""
        return 1 + max(0, -(-(frames - self.frames(0)) // self.chunk_frames))

    def _clean(self, stored: int, width: int, stage: int) -> tuple[list[Key], list[Key]]:
        """Anchor and bounded history (oldest first) out of chunks 0 .. stored - 1."""
        anchors = range(min(self.anchor_chunks, stored))
        history = range(max(self.anchor_chunks, stored - width), stored)
        return [Key(c, stage) for c in anchors], [Key(c, stage) for c in history]

    def _release(self, key: Key, width: int) -> tuple[Key, ...]:
        """What falls out of reach when `key` has been written and `width` chunks before it may be read."""
        oldest = key.chunk - width - self.retain
        return (Key(oldest, key.stage),) if oldest >= self.anchor_chunks else ()

    def _reads(self, anchors: list[Key], others: list[Key], base: int | None = None) -> tuple[Read, ...]:
        """Anchor, whose first frame sits at `base` (adjacent when None), then the others in order."""
        return (*self._anchors(anchors, others[0], base), *map(self._read_where_written, others))

    def _read_where_written(self, key: Key) -> Read:
        """A chunk in the context, at its true position."""
        return Read(key, self.frames(key.chunk), self.start(key.chunk))

    def _anchors(self, anchors: list[Key], oldest: Key, base: int | None) -> list[Read]:
        """Anchor, whose first frame sits at `base`, or just before the chunk `oldest`."""
        absolute = self.anchor_position == "absolute"
        if base is None:
            base = self.start(oldest.chunk) - sum(self.frames(key.chunk) for key in anchors)
        return [
            Read(
                key,
                self.frames(key.chunk),
                self.start(key.chunk) + (0 if absolute else base),
                anchor=not absolute,
            )
            for key in anchors
        ]

    def _slot(self, key: Key, reads: tuple[Read, ...], clean_stage: int) -> Slot:
        moving = self.anchor_position != "absolute" and key.chunk < self.anchor_chunks
        return Slot(
            key.chunk,
            key.stage,
            self.start(key.chunk),
            self.frames(key.chunk),
            reads,
            keep_unroped=moving and key.stage == clean_stage,
        )


def at_least(name: str, value: int | None, least: int) -> None:
    """Reject a parameter that is given and too small."""
    if value is not None and value < least:
        raise UsageError(f"{name}: expected at least {least}, got {value}")


class Rounds(Iterator[Round]):
    """The rounds of one stream, one after the other.

    Parameters
    ----------
    rules : Rules
        What determines them.
    chunks : int, optional
        Length of the stream; endless while None.
    """

    def __init__(self, rules: Rules, chunks: int | None = None) -> None:
        at_least("chunks", chunks, 0)
        self.rules = rules
        self.chunks = chunks
        self.index = 0

    def __next__(self) -> Round:
        if self.chunks is not None and self.index >= self.rules.count(self.chunks):
            raise StopIteration
        result = self.rules.round(self.index, self.chunks)
        self.index += 1
        return result

    @property
    def entered(self) -> int:
        """Chunks that have entered so far: the least number of chunks the stream can end with."""
        entered = self.rules.entered(self.index)
        return entered if self.chunks is None else min(entered, self.chunks)

    def finish(self, chunks: int | None = None) -> None:
        """Fix the end of the stream: `chunks` chunks, or no chunk but those that have entered.

        The remaining rounds then drain the stages.
        """
        chunks = self.entered if chunks is None else chunks
        at_least("chunks", chunks, self.entered)
        self.chunks = chunks

    def delay(self) -> None:
        """Let no chunk enter in the next round; see `Rules.delay`."""
        self.rules = self.rules.delay(self.index)

    def branch(self, chunk: int) -> None:
        """Let `chunk` enter anew in the next round, and later chunks after it; see `Rules.branch`."""
        self.rules = self.rules.branch(chunk, self.index)
