"""Rounds of one call: a number of latents from any position of a stream on, behind a prefix that is there.

Chunks are named by the temporal index of their first latent, so `Key.chunk` is a position of the stream and a
branch may lie inside what was a chunk before: the latents before it keep their keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from wavecore.rounds.data import Key, Read, Round, Slot
from wavecore.rounds.rules import at_least


class Piece(NamedTuple):
    """Latents [start, start + frames) that were or will be one chunk."""

    start: int
    frames: int

    @property
    def end(self) -> int:
        """Index behind its last latent."""
        return self.start + self.frames


@dataclass(frozen=True, kw_only=True)
class CallRules:
    """How the latents of a call become chunks and what these read.

    Parameters
    ----------
    steps : int
        Denoising stages N.
    order : "sequential" or "wavefront"
        One chunk after the other, or all of them as a wave that fills and drains.
    chunk_frames : int
        Latents of a chunk; the last one of a call may be shorter.
    history : int
        Clean latents that a denoising slot may read besides the anchor, rounded up to whole chunks.
    store_history : int
        The same for the store pass.
    anchor : bool
        Whether the first chunk of the stream is always read, just before the oldest other chunk.
    first_alone : bool
        In a wave, take the first chunk through all denoising stages before the others follow, beside its
        store pass: on one device the first frames then come as early as in sequential order.
    """

    steps: int
    order: Literal["sequential", "wavefront"] = "sequential"
    chunk_frames: int = 3
    history: int = 15
    store_history: int = 15
    anchor: bool = False
    first_alone: bool = False

    def __post_init__(self) -> None:
        for name, least in (("steps", 1), ("chunk_frames", 1), ("history", 0), ("store_history", 0)):
            at_least(name, getattr(self, name), least)

    @property
    def reach(self) -> int:
        """Latents before a position that may still be read from there, beside the anchor."""
        live = self.chunk_frames if self.order == "wavefront" else 0
        return max(self.history + live, self.store_history) + self.chunk_frames - 1

    def pieces(self, position: int, latents: int) -> list[Piece]:
        """Cut the latents [position, position + latents) into chunks."""
        end = position + latents
        return [Piece(s, min(self.chunk_frames, end - s)) for s in range(position, end, self.chunk_frames)]

    def rounds(self, prefix: Sequence[Piece], position: int, latents: int, store: bool = True) -> list[Round]:
        """Rounds of a call.

        Parameters
        ----------
        prefix : sequence of Piece
            Chunks before `position` whose clean keys and values are there, oldest first.
        position, latents : int
            The call makes [position, position + latents).
        store : bool
            Whether the last chunk gets its store pass; the others need theirs, since later chunks read them.
        """
        before, pieces = list(prefix), self.pieces(position, latents)
        if self.order == "wavefront":
            rounds = []
            for round in Wave(self, pieces, store).rounds(before):
                rounds.append(round)
                before += self.stored(round)
            return rounds
        rounds = list(self._sequential(before, pieces))
        return [replace(round, index=index) for index, round in enumerate(rounds if store else rounds[:-1])]

    def stored(self, round: Round) -> list[Piece]:
        """Chunks whose clean keys and values a round makes."""
        return [Piece(slot.chunk, slot.frames) for slot in round.slots if slot.stage == self.steps]

    def prefill(self, prefix: Sequence[Piece], position: int, latents: int) -> list[Round]:
        """Store passes alone, for clean latents [position, position + latents) behind `prefix`."""
        before, rounds = list(prefix), []
        for index, piece in enumerate(self.pieces(position, latents)):
            slots = (self._store(before, piece),)
            rounds.append(Round(index, self.steps, slots, phase="store"))
            before.append(piece)
        return rounds

    def _sequential(self, before: list[Piece], pieces: list[Piece]) -> Iterator[Round]:
        for piece in pieces:
            for stage in range(self.steps):
                key = Key(piece.start, stage)
                clean = self._clean(before, self.history)
                yield Round(
                    0,
                    self.steps,
                    (self._slot(piece, stage, clean, [(key, piece)]),),
                    releases=(key,),
                    completes=piece.start if stage == self.steps - 1 else None,
                    phase="denoise",
                )
            yield Round(0, self.steps, (self._store(before, piece),), phase="store")
            before.append(piece)

    def wave_round(self, index: int, before: Sequence[Piece], held: Mapping[int, Piece]) -> Round:
        """Round of a wave whose slots hold what is given.

        Parameters
        ----------
        index : int
            Number of the round.
        before : sequence of Piece
            Chunks whose clean keys and values are there, oldest first.
        held : mapping of stage to Piece
            What each slot works on; stage `steps` is the store pass.
        """
        steps = self.steps
        live = held.get(steps)
        # Where nothing is being stored, one more chunk of the past takes the place of the live store.
        clean = self._clean(before, self.history + (0 if live else self.chunk_frames))
        context = [*clean, live] if live else clean
        slots = [] if live is None else [self._store(before, live)]
        denoising = sorted(stage for stage in held if stage < steps)
        for stage in reversed(denoising):
            flight = [(Key(held[s].start, s), held[s]) for s in denoising if s >= stage]
            slots.append(self._slot(held[stage], stage, context, flight))
        done = held.get(steps - 1)
        return Round(
            index,
            steps,
            tuple(slots),
            releases=tuple(slot.key for slot in slots if slot.stage < steps),
            completes=None if done is None else done.start,
            phase="steady" if len(held) > steps else "fill" if live is None else "drain",
        )

    def _clean(self, before: Sequence[Piece], latents: int) -> list[Piece]:
        """Latest stored chunks that hold `latents` latents, oldest first, and the anchor."""
        chosen: list[Piece] = []
        for piece in reversed(before):
            if sum(p.frames for p in chosen) >= latents:
                break
            chosen.insert(0, piece)
        if self.anchor and before and before[0] not in chosen:
            chosen.insert(0, before[0])
        return chosen

    def _store(self, before: Sequence[Piece], piece: Piece) -> Slot:
        clean = self._clean(before, self.store_history)
        return self._slot(piece, self.steps, clean, [(Key(piece.start, self.steps), piece)])

    def _slot(self, piece: Piece, stage: int, clean: list[Piece], own: list[tuple[Key, Piece]]) -> Slot:
        reads = [Read(Key(p.start, self.steps), p.frames, p.start) for p in clean]
        reads += [Read(key, p.frames, p.start) for key, p in own]
        if self.anchor and reads[0].key == Key(0, self.steps) and piece.start:
            beside = min(read.position for read in reads[1:]) - reads[0].frames
            reads[0] = replace(reads[0], position=beside, anchor=True)
        unroped = self.anchor and piece.start == 0 and stage == self.steps
        return Slot(piece.start, stage, piece.start, piece.frames, tuple(reads), keep_unroped=unroped)


class Wave:
    """A wave whose end can be replaced while it runs.

    Parameters
    ----------
    rules : CallRules
    pieces : sequence of Piece
        Chunks that enter one after the other, all but the first behind it where it goes first alone.
    store : bool
        Whether the last chunk gets its store pass.
    """

    def __init__(self, rules: CallRules, pieces: Sequence[Piece], store: bool = True) -> None:
        self._rules, self._store = rules, store
        self._entries: dict[Piece, int] = {}  # round in which each enters
        self._index = 0
        self._enter(pieces)

    def rounds(self, before: Sequence[Piece]) -> Iterator[Round]:
        """Rounds until every chunk is through.

        Parameters
        ----------
        before : sequence of Piece
            Chunks whose clean keys and values are there; whoever runs the rounds appends those they store.
        """
        while held := self._held():
            index = self._index
            self._index += 1
            yield self._rules.wave_round(index, before, held)

    def splice(self, position: int, latents: int) -> list[Piece]:
        """Let [position, position + latents) enter in place of what lies from `position` on.

        Chunks before it go on; the new ones follow the last of them, at the earliest in the next round.

        Returns
        -------
        list of Piece
            The new chunks.
        """
        self._entries = {p: entry for p, entry in self._entries.items() if p.start < position}
        pieces = self._rules.pieces(position, latents)
        self._enter(pieces)
        return pieces

    def _enter(self, pieces: Sequence[Piece]) -> None:
        first = max([self._index - 1, *self._entries.values()]) + 1
        second = first + (self._rules.steps if self._rules.first_alone else 1)
        self._entries[pieces[0]] = first
        self._entries |= {piece: second + index for index, piece in enumerate(pieces[1:])}

    def _held(self) -> dict[int, Piece]:
        """What each slot holds in the next round; chunks that are through are forgotten."""
        steps = self._rules.steps
        last = max(self._entries, default=None)
        self._entries = {
            p: entry
            for p, entry in self._entries.items()
            if self._index - entry <= (steps if self._store or p != last else steps - 1)
        }
        return {self._index - entry: p for p, entry in self._entries.items() if entry <= self._index}
