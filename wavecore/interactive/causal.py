"""Calls on a causal model: a branch keeps the pages of its prefix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.control.speculative.events import CONTEXT, LATENT, PIXELS, SNAPSHOT
from wavecore.interactive.conditions import Conditions, Followed
from wavecore.interactive.predictions import NOTHING_YET, Decoder, Made, Prediction, Predictions, inference
from wavecore.models.bundle import StreamModel
from wavecore.placement.calls import CallPlacement, CallStream, local_calls
from wavecore.rounds import NoiseLevel, Round
from wavecore.rounds.calls import CallRules, Piece, Wave

_MADE = LATENT | PIXELS | SNAPSHOT


@dataclass(frozen=True)
class Shelf:
    """A suffix that was cut off: where its pages are, chunks, predictions."""

    pages: int
    pieces: list[Piece]
    predictions: dict[int, Prediction]


def calls_pool(rules: CallRules, latents: int) -> PoolSize:
    """Pages of a stream whose calls have so many latents."""
    # Played, replaceable, shelved and being made: a call each, or two where a refill begins early.
    pages = 5 * latents + rules.reach + (rules.steps + 2) * rules.chunk_frames
    anchor = 2 * rules.chunk_frames if rules.anchor else 0
    return PoolSize(pages + 2 * anchor, anchor)


class CausalGenerator:
    """Continues a stream from its prefix: retained keys and values, or ones rebuilt from clean latents.

    Parameters
    ----------
    model : StreamModel
    rules : CallRules
    levels : sequence of NoiseLevel
        One per denoising stage, and one for the store pass.
    seed : int
    size : (width, height)
        Pixels.
    latents : int
        K of a call, for the size of the pool.
    prefill : bool
        Rebuild keys and values of retained latents from the clean latents, each once before the first call
        that continues it, instead of keeping those of their own inference.
    whole_clip : bool
        Decode when all latents of a call are there, not as they come.
    place : callable, optional
        Finds the stream a place where its rounds run; the model's device when left out.
    """

    def __init__(
        self,
        model: StreamModel,
        rules: CallRules,
        levels: Sequence[NoiseLevel],
        seed: int,
        size: tuple[int, int],
        latents: int,
        *,
        prefill: bool = False,
        whole_clip: bool = False,
        place: Callable[[CallStream], CallPlacement] | None = None,
    ) -> None:
        self.model, self.rules = model, rules
        self.predictions = Predictions()
        self._prefill, self._whole_clip = prefill, whole_clip
        factor = model.vae.spatial_factor
        latent_size = (model.dit.config.in_channels, size[1] // factor, size[0] // factor)
        stream = CallStream(rules, levels, seed, latent_size, calls_pool(rules, latents))
        self.placement = (place or partial(local_calls, model.dit))(stream)
        self._decoder = Decoder(model.vae)
        # Chunks whose clean keys and values are there; changed in place, since a running wave reads it.
        self._pieces: list[Piece] = []
        self._conditions = Conditions(
            lambda prompt: model.encode_text([prompt]), self.placement.encode_text, rules.chunk_frames
        )
        self._followed: dict[int, Followed] = {}  # by each chunk of the call
        self._left: set[int] = set()  # chunks of the call that are not decoded
        self._waiting: list[tuple[Piece, Tensor]] = []  # complete chunks of the call that are not decoded
        self._wave: Wave | None = None

    # -- calls ---------------------------------------------------------------------------

    def call(self, position: int, groups: int, trimmed: int, prompt: str) -> Iterator[Made]:
        """See `Generator.call`; nothing is trimmed."""
        return inference(self._call(position, groups, prompt))

    def _call(self, position: int, latents: int, prompt: str) -> Iterator[Made]:
        try:
            if self._prefill:
                self._rebuild(position)
                yield NOTHING_YET
            pieces = self.rules.pieces(position, latents)
            self._followed = self._conditions.follow(prompt, pieces, self._before(position))
            self._left = {piece.start for piece in pieces}
            rounds: Iterator[Round]
            if self.rules.order == "wavefront":
                self._wave = Wave(self.rules, pieces, store=not self._prefill)
                rounds = self._wave.rounds(self._pieces)
            else:
                store = not self._prefill
                rounds = iter(self.rules.rounds(self._pieces, position, latents, store=store))
            for round in rounds:
                encode, followed = self._conditions.encode, self._followed
                texts = {slot.chunk: encode(followed[slot.chunk]) for slot in round.slots}
                self.placement.submit(round, texts)
                if self.placement.elsewhere:  # what was complete before this round, while it runs
                    yield from self._decode()
                complete = self.placement.collect()
                if complete is not None and round.completes is not None:
                    self._waiting.append((Piece(round.completes, complete.shape[1]), complete))
                if not self.placement.elsewhere:
                    yield from self._decode()
                for piece in self.rules.stored(round):
                    self._pieces.append(piece)
                    for at in range(piece.start, piece.end):
                        yield Made(at, CONTEXT)
                yield NOTHING_YET
            yield from self._decode()
        finally:
            self._wave = None
            self._left = set()
            self._waiting = []
            self._tidy(position)

    def splice(self, position: int, latents: int, prompt: str) -> bool:
        """See `Generator.splice`; slots before `position` go on, the new chunks enter behind them."""
        if self._wave is None or self._whole_clip:
            return False
        self.discard(self.cut(position))
        self.placement.drop_from(position)
        self._waiting = [waiting for waiting in self._waiting if waiting[0].start < position]
        before = self._before(position)
        self._left = {start for start in self._left if start < position}
        self._followed = {start: text for start, text in self._followed.items() if start < position}
        pieces = self._wave.splice(position, latents)
        self._followed |= self._conditions.follow(prompt, pieces, before)
        self._left |= {piece.start for piece in pieces}
        return True

    def _before(self, position: int) -> Followed | None:
        """What the chunk before a position follows, be it complete or in flight."""
        in_flight = [start for start in self._left if start < position]
        if in_flight:
            return self._followed[max(in_flight)]
        before = self.predictions.before(position)
        return before[0].prompt if before else None

    def _decode(self) -> Iterator[Made]:
        """Decode the chunks that are complete: as they come, or all of a call at its end."""
        if self._whole_clip and len(self._waiting) < len(self._left):
            return
        while self._waiting:
            piece, latents = self._waiting.pop(0)
            self._left.discard(piece.start)
            for at, latent in enumerate(latents.unbind(1), piece.start):
                before = self.predictions.before(at)
                state = before[0].after if before else ()
                followed = self._followed[piece.start]
                self.predictions[at] = self._decoder.decode(latent.clone(), state, followed)
                yield Made(at, _MADE)

    def _tidy(self, position: int) -> None:
        """Forget what was in flight; with clean prefill also the keys and values that the call made."""
        if self._prefill:
            self._pieces[:] = [piece for piece in self._pieces if piece.start < position]
        self.placement.keep([piece.start for piece in self._pieces])

    def _rebuild(self, position: int) -> None:
        """Make clean keys and values of the retained latents that have none."""
        done = self._pieces[-1].end if self._pieces else 0
        first = max(done, position - self.rules.reach) if done or not self.rules.anchor else 0
        wanted = [p for p in range(first, position) if p in self.predictions]
        for first, count in _runs(wanted, [self.predictions[p].prompt for p in wanted]):
            text = self._conditions.encode(self.predictions[first].prompt)
            for round in self.rules.prefill(self._pieces, first, count):
                (slot,) = round.slots
                frames = range(slot.chunk, slot.chunk + slot.frames)
                clean = torch.stack([self.predictions[p].latent for p in frames], 1)
                self.placement.submit(round, {slot.chunk: text}, clean)
                self.placement.collect()
                self._pieces.append(Piece(slot.chunk, slot.frames))

    # -- branches ------------------------------------------------------------------------

    def cut(self, position: int) -> Shelf:
        """See `Generator.cut`; pages change hands, nothing is copied."""
        pages = self.placement.cut(position)
        tails = [p for p in self._pieces if p.end > position]
        kept = [Piece(p.start, min(p.frames, position - p.start)) for p in self._pieces if p.start < position]
        self._pieces[:] = kept
        return Shelf(pages, tails, self.predictions.cut(position))

    def restore(self, shelf: Shelf) -> None:
        """See `Generator.restore`."""
        replaced = min([p.start for p in shelf.pieces] + list(shelf.predictions), default=None)
        if replaced is None:
            return
        first = min(shelf.predictions, default=replaced)
        self.discard(self.cut(first))
        self.placement.restore(shelf.pages)
        starts = {piece.start for piece in shelf.pieces}
        self._pieces[:] = [p for p in self._pieces if p.start not in starts] + shelf.pieces
        self.predictions.restore(shelf.predictions)

    def discard(self, shelf: Shelf) -> None:
        """See `Generator.discard`."""
        self.placement.discard(shelf.pages)

    def release(self, before: int) -> None:
        """See `Generator.release`."""
        done = self._pieces[-1].end if self._pieces else 0
        # Retained latents without keys and values are still to be prefilled, behind what is read for that.
        needed = min(before, done) if self._prefill else before
        oldest = needed - self.rules.reach
        gone = [p for p in self._pieces if p.end <= oldest and not (self.rules.anchor and p.start == 0)]
        self.placement.drop([piece.start for piece in gone])
        self._pieces[:] = [p for p in self._pieces if p not in gone]
        self.predictions.forget(needed)

    def close(self) -> None:
        """See `Generator.close`."""
        self.placement.close()


def _runs(positions: Sequence[int], prompts: Sequence[Followed]) -> list[tuple[int, int]]:
    """(first, count) of consecutive positions under one prompt."""
    runs: list[tuple[int, int]] = []
    for index, position in enumerate(positions):
        same = index > 0 and prompts[index] == prompts[index - 1] and position == positions[index - 1] + 1
        if same:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((position, 1))
    return runs
