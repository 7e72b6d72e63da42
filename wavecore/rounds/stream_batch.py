"""StreamDiffusionV2 rounds: all noise levels as one batch, each level with its own history."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Literal

from wavecore.errors import UsageError
from wavecore.rounds.data import Key, Read, Round, Slot
from wavecore.rounds.rules import Rounds, Rules, at_least

PositionReset = Literal["bounded", "published"]


@dataclass(frozen=True, kw_only=True)
class StreamBatch(Rules):
    """Row i of round t holds chunk t - i * lag and reads only what chunks wrote at level i.

    There is no store pass: the sinks (the anchor, as long as none was replaced), the `history` chunks
    before it and itself are all the context of a row.

    Parameters
    ----------
    history : int
        Chunks of `chunk_frames` besides the sinks that a row reads before its own: at least as many latent
        frames where chunks have another length.
    lag : int
        Rounds from one level of a chunk to its next. 1 for one device; the number of ranks for a ring, in
        which a round's result is known that many rounds later.
    sinks : tuple of int, optional
        Chunks that are the sinks now, by slot; chunks 0 .. `anchor_chunks` - 1 when not given. Only rounds
        that follow the change are determined by it. See `replace_sinks`.
    moving_sinks : bool
        Keep what a later change of sinks needs: keys before rotation, and every level of a chunk until it has
        passed the last one.
    position_limit : int, optional
        Temporal positions stay below it, however long the stream; unbounded when not given.
    position_reset : "bounded" or "published"
        How: by rotating the cached keys to lower positions together with the new ones, from keys before
        rotation, which changes no distance between frames; or as StreamDiffusionV2's public code does,
        which begins anew at the window's length and leaves cached keys where they are.
    longest_chunk_frames : int, optional
        Most latent frames of a chunk of a stream whose chunks change their length; `chunk_frames` when not
        given. See `resize`.
    resized : tuple of (chunk, its temporal index, latent frames)
        From which chunk on chunks have another length than `chunk_frames`.
    """

    chunk_frames: int = 1
    first_chunk_frames: int | None = 2
    history: int = 2
    anchor_chunks: int = 2
    lag: int = 1
    sinks: tuple[int, ...] | None = None
    moving_sinks: bool = False
    position_limit: int | None = None
    position_reset: PositionReset = "bounded"
    longest_chunk_frames: int | None = None
    resized: tuple[tuple[int, int, int], ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("history", self.history, 0)
        at_least("lag", self.lag, 1)
        if self.position_reset not in ("bounded", "published"):
            raise UsageError(f"position_reset: expected bounded or published, got {self.position_reset!r}")
        at_least("longest_chunk_frames", self.longest_chunk_frames, self.chunk_frames)
        if self._longest > self.chunk_frames and (
            self.anchor_position == "absolute" or self.position_reset == "published"
        ):
            raise UsageError("longest_chunk_frames: expected positions that are bounded by moving all keys")
        at_least("position_limit", self.position_limit, self._window() + self._longest)
        if self.position_limit is not None and self.anchor_position == "absolute":
            raise UsageError("position_limit: expected anchors that move with the stream, got absolute ones")
        if self.moving_sinks:
            # A chunk is compared when its last level is known, `lag` rounds after that level entered; the
            # first level must still have it then.
            spare = self.steps * self.lag - self.history * self.chunk_frames // self._longest
            object.__setattr__(self, "retain", max(self.retain, spare))

    # -- lengths of chunks ---------------------------------------------------------------

    @property
    def _longest(self) -> int:
        return self.chunk_frames if self.longest_chunk_frames is None else self.longest_chunk_frames

    def frames(self, chunk: int) -> int:
        piece = self._piece(chunk)
        return super().frames(chunk) if piece is None else piece[2]

    def start(self, chunk: int) -> int:
        piece = self._piece(chunk)
        return super().start(chunk) if piece is None else piece[1] + (chunk - piece[0]) * piece[2]

    def _piece(self, chunk: int) -> tuple[int, int, int] | None:
        return next((piece for piece in reversed(self.resized) if piece[0] <= chunk), None)

    def resize(self, frames: int, index: int) -> StreamBatch:
        """The same rules for a stream whose chunks have `frames` latent frames from the next one on.

        The first chunk keeps its length.

        Parameters
        ----------
        frames : int
            Up to `longest_chunk_frames`.
        index : int
            The next round; rounds before it are not determined by the result.
        """
        if not 1 <= frames <= self._longest:
            raise UsageError(f"frames: expected 1 to {self._longest}, got {frames}")
        chunk = max(1, self.entered(index))
        if frames == self.frames(chunk):
            return self
        pieces = [*(p for p in self.resized if p[0] < chunk), (chunk, self.start(chunk), frames)]
        # What no row reads any more is forgotten, or an endless stream would fill memory.
        needed = (*self._sinks(), self._oldest(max(0, chunk - self.rounds_held() * 2)) - self.retain)
        ends = [*(piece[0] for piece in pieces[1:]), chunk + 1]
        read = [
            end > needed[-1] or any(piece[0] <= c < end for c in needed)
            for piece, end in zip(pieces, ends, strict=True)
        ]
        return replace(self, resized=tuple(p for p, kept in zip(pieces, read, strict=True) if kept))

    def branch(self, chunk: int, index: int) -> Rules:
        kept = tuple(piece for piece in self.resized if piece[0] <= chunk)
        return super(StreamBatch, replace(self, resized=kept)).branch(chunk, index)

    def widest(self) -> Rules:
        """Rules of fixed chunk length that need no fewer pages than these."""
        if self._longest == self.chunk_frames:
            return self
        history = -(-self.history * self.chunk_frames // self._longest) + 1
        bounded = self.position_limit is not None  # how many pages it takes does not depend on where
        return replace(
            self,
            chunk_frames=self._longest,
            history=history,
            longest_chunk_frames=None,
            resized=(),
            position_limit=2**31 if bounded else None,
        )

    def _oldest(self, chunk: int) -> int:
        """The first chunk besides the sinks that the rows of a chunk read."""
        wanted, oldest = self.history * self.chunk_frames, chunk
        while oldest > 0 and wanted > 0:
            oldest -= 1
            wanted -= self.frames(oldest)
        return oldest

    # -- rounds --------------------------------------------------------------------------

    def rounds_held(self) -> int:
        return (self.steps - 1) * self.lag + 1

    def settled(self) -> int:
        first = 1  # beyond the history: it may be shorter than the others
        return self.anchor_chunks + self.history + first + self.retain + self.rounds_held()

    def round(self, index: int, chunks: int | None = None) -> Round:
        slots: list[Slot] = []
        releases: list[Key] = []
        for stage in range(self.steps - 1, -1, -1):
            chunk = self.entering(index - stage * self.lag)
            if chunk is None or (chunks is not None and chunk >= chunks):
                continue
            slots.append(self._row(chunk, stage))
            left = range(self._oldest(chunk) - self.retain, self._oldest(chunk + 1) - self.retain)
            releases += [Key(c, stage) for c in left if c >= 0 and c not in self._sinks()]
        drain = chunks is not None and index > self.entry(chunks - 1)
        return Round(
            index,
            self.steps,
            tuple(slots),
            releases=tuple(releases),
            completes=next((slot.chunk for slot in slots if slot.stage == self.steps - 1), None),
            store_pass=False,
            phase="drain" if drain else "fill" if len(slots) < self.steps else "steady",
        )

    # -- sinks ---------------------------------------------------------------------------

    def _sinks(self) -> tuple[int, ...]:
        return tuple(range(self.anchor_chunks)) if self.sinks is None else self.sinks

    def replace_sinks(self, sinks: Iterable[int], index: int) -> tuple[StreamBatch, tuple[Key, ...]]:
        """The same rules with other sinks from round `index` on.

        Parameters
        ----------
        sinks : iterable of int
            Chunks, by slot; every new one has passed its last level.
        index : int
            The next round.

        Returns
        -------
        StreamBatch
        tuple of Key
            Keys of former sinks that no round will read or release any more.
        """
        if not self.moving_sinks:
            raise UsageError("sinks: expected rules with moving_sinks to replace them, got fixed ones")
        after = replace(self, sinks=tuple(sinks))
        orphans = []
        for stage in range(self.steps):
            newest = self.entered(index - stage * self.lag) - 1
            passed = self._oldest(newest + 1) - self.retain - 1  # the release of this chunk has been made
            orphans += [
                Key(chunk, stage)
                for chunk in self._sinks()
                if chunk not in after._sinks() and chunk <= passed
            ]
        return after, tuple(orphans)

    # -- one row -------------------------------------------------------------------------

    def _row(self, chunk: int, stage: int) -> Slot:
        sinks = self._sinks()
        anchors = [c for c in sinks if c < chunk]
        history = [c for c in range(self._oldest(chunk), chunk) if c not in anchors]
        if self.anchor_position == "absolute":
            reads = [self._read(c, stage, self.start(c)) for c in (*anchors, *history, chunk)]
        elif self.position_limit is not None and self.position_reset == "published":
            reads = [self._read(c, stage, self._published(c)) for c in (*anchors, *history, chunk)]
        else:
            origin = self._origin(chunk)
            others = [self._read(c, stage, self.start(c) - origin) for c in (*history, chunk)]
            position = others[0].position - sum(self.frames(c) for c in anchors)
            reads = []
            for c in anchors:
                reads.append(self._read(c, stage, position, anchor=True))
                position += self.frames(c)
            reads += others
        moving = self.anchor_position != "absolute" and not (
            self.position_limit is not None and self.position_reset == "published"
        )
        wanted_later = chunk in sinks or self.moving_sinks or self.position_limit is not None
        return Slot(
            chunk,
            stage,
            reads[-1].position,
            self.frames(chunk),
            tuple(reads),
            keep_unroped=moving and wanted_later,
        )

    def _read(self, chunk: int, stage: int, position: int, anchor: bool = False) -> Read:
        return Read(Key(chunk, stage), self.frames(chunk), position, anchor)

    # -- positions -----------------------------------------------------------------------

    def _window(self) -> int:
        """Most latent frames that a row reads."""
        longest = self._longest
        first = max(self.first_chunk_frames or 0, longest)
        sinks = first * min(1, self.anchor_chunks) + longest * max(0, self.anchor_chunks - 1)
        beyond = longest - 1 if longest > self.chunk_frames else 0  # of the oldest chunk in the history
        return sinks + self.history * self.chunk_frames + beyond + longest

    def _origin(self, chunk: int) -> int:
        """Temporal index that counts as 0 for a chunk: moved on each time the limit is reached."""
        if self.position_limit is None:
            return 0
        beyond = self.start(chunk) + self.frames(chunk) - self.position_limit
        period = self.position_limit - self._window()
        return max(0, -(-beyond // period)) * period

    def _published(self, chunk: int) -> int:
        """Position under the public rule: from the limit back to the window's length less one."""
        limit, start = self.position_limit, self.start(chunk)
        if limit is None or start < limit:
            return start
        again = self._window() - 1
        cycle = -(-(limit - again) // self.chunk_frames)
        first = 1 + -(-(limit - self.frames(0)) // self.chunk_frames)  # the first chunk at the limit
        return again + (chunk - first) % cycle * self.chunk_frames


def stream_batch(steps: int, chunks: int | None = None, **rules: Any) -> Rounds:
    """Rounds of a stream batch; `rules` are parameters of `StreamBatch`."""
    return Rounds(StreamBatch(steps=steps, **rules), chunks)
