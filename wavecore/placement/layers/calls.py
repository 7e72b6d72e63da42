"""Calls on a ring: the slots of a wave follow each other around it."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Mapping
from dataclasses import replace

from torch import Tensor

from wavecore.cache.edits import Action, Edit
from wavecore.models.dit import TextContext
from wavecore.placement.calls import CallPlacement, CallStream
from wavecore.placement.handoff import Handoff
from wavecore.placement.layers.ring import Ring
from wavecore.rounds import Round, Slot

_TEXTS = 16  # chunks whose conditions the ranks keep


class RingCalls(CallPlacement):
    """Calls whose slots go around a ring one by one, the cleanest of a round first.

    A slot reads what cleaner ones wrote, which came by every rank before it. It waits only for the estimate
    that it starts from, made `steps` slots before it in a full wave: as many ranks as steps are all at work.

    Parameters
    ----------
    ring : Ring
        Its layers stay where they are.
    stream : CallStream
    """

    def __init__(self, ring: Ring, stream: CallStream) -> None:
        super().__init__()
        self._steps = stream.rules.steps
        self._placement = ring.open(stream.rules, stream.pool, *stream.latent[1:])
        device = ring.dit.patch_embedding.weight.device
        self._handoff = Handoff(stream.levels, stream.seed, stream.latent, device)
        self._flight: deque[tuple[Round, bool]] = deque()  # a slot each, and whether its result is wanted
        self._texts: OrderedDict[int, TextContext] = OrderedDict()  # of the latest chunks
        self._completes = False
        self._complete: Tensor | None = None

    def encode_text(self, features: Tensor) -> TextContext:
        """See `CallPlacement.encode_text`."""
        return self._placement.encode_text(features)

    def submit(self, round: Round, texts: Mapping[int, TextContext], clean: Tensor | None = None) -> None:
        """See `CallPlacement.submit`."""
        for chunk, text in texts.items():
            self._texts[chunk] = text
            self._texts.move_to_end(chunk)
        while len(self._texts) > max(_TEXTS, len(texts)):
            self._texts.popitem(last=False)
        self._completes, self._complete = round.completes is not None, None
        for slot in round.slots:
            latent = self._input(slot) if clean is None else clean
            if len(self._flight) == self._placement.depth:
                self._take()
            releases = round.releases if slot is round.slots[-1] else ()
            part = replace(round, slots=(slot,), releases=releases)
            self._placement.submit(part, {slot.stage: latent}, self._handoff.levels, self._texts)
            self._flight.append((part, True))

    def _input(self, slot: Slot) -> Tensor:
        """What a slot starts from, once it is there."""
        while slot.stage and slot.key not in self._handoff.waiting:
            self._take()
        (latent,) = self._handoff.latents(Round(0, self._steps, (slot,))).values()
        return latent

    def collect(self) -> Tensor | None:
        """See `CallPlacement.collect`; slots of noisier stages may still be on their way."""
        while self._completes and self._complete is None:
            self._take()
        return self._complete

    def _take(self) -> None:
        """Take the result of the slot that has been on its way longest."""
        part, wanted = self._flight.popleft()
        estimates = self._placement.collect()
        estimates.pop(self._steps, None)  # a store pass is there for its keys and values
        if wanted and (complete := self._handoff.advance(part, estimates)) is not None:
            self._complete = complete

    def drop_from(self, position: int) -> None:
        """See `CallPlacement.drop_from`."""
        self._handoff.drop_from(position)
        self._flight = deque(
            (part, wanted and part.slots[0].chunk < position) for part, wanted in self._flight
        )

    def close(self) -> None:
        """See `CallPlacement.close`."""
        self._placement.close()

    def _edit(self, action: Action, *numbers: int) -> None:
        self._placement.edit(Edit(action, numbers))
