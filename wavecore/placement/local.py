"""All slots of a round on one device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Literal

import torch
from torch import Tensor

from wavecore.cache import ContextCache, PagePool, PageView, PoolSize
from wavecore.errors import UsageError
from wavecore.models.dit import CausalWanDiT, SlotState, TextContext
from wavecore.models.rope import rope_table
from wavecore.rounds import Key, NoiseLevel, Round, Slot
from wavecore.transfer import upload

Order = Literal["batched", "slots", "layers"]


class LocalPlacement:
    """Runs rounds on one device.

    Parameters
    ----------
    dit : CausalWanDiT
        The model.
    cache : ContextCache
        Context of the session.
    order : "batched", "slots" or "layers"
        Slots of equal length in one forward pass; one slot after the other, cleanest first; or
        all slots layer by layer, each with its own pass. The last two give the same bits; the
        first may differ by rounding, since a matrix product may depend on its batch.

    Attributes
    ----------
    probe : int or None
        Layer after which the mean hidden state of every slot is kept.
    embeddings : dict of stage to Tensor [D]
        These, of the round collected last.
    """

    def __init__(self, dit: CausalWanDiT, cache: ContextCache, order: Order = "batched") -> None:
        if order not in ("batched", "slots", "layers"):
            raise UsageError(f"order: expected batched, slots or layers, got {order!r}")
        self.dit = dit
        self.cache = cache
        self.order = order
        self.probe: int | None = None
        self.embeddings: dict[int, Tensor] = {}
        self._probed: dict[int, Tensor] = {}
        self._done: deque[tuple[dict[int, Tensor], dict[int, Tensor]]] = deque()

    # -- what a session asks of every placement --------------------------------------------

    depth = 1  # rounds in flight: a round's results are there when the next one is made

    def encode_text(self, features: Tensor) -> TextContext:
        """Condition of text features [1, l, text_dim]."""
        return self.dit.encode_text(features)

    def submit(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> None:
        """Begin a round; parameters as for `run`."""
        self._probed = {}
        estimates = self.run(round, latents, levels, text)
        self._done.append((estimates, self._probed))

    def collect(self) -> dict[int, Tensor]:
        """Results of the oldest round submitted; see `run`."""
        estimates, self.embeddings = self._done.popleft()
        return estimates

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget keys that no further round reads."""
        self.cache.drop(keys)

    def close(self) -> None:
        """Give up the session's pages."""
        self.cache.close()

    # -- a round -----------------------------------------------------------------------------

    @torch.inference_mode()
    def run(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> dict[int, Tensor]:
        """Run one round: write its keys and values, release what it releases.

        Parameters
        ----------
        round : Round
            Slots to run.
        latents : mapping of stage to Tensor [c, f, h, w]
            Input of each slot; for the store pass the clean latent.
        levels : mapping of stage to NoiseLevel, or a sequence
            Noise level of each slot.
        text : mapping of chunk to TextContext
            Prompt of each chunk, with a batch of 1.

        Returns
        -------
        dict of stage to Tensor [c, f, h, w]
            Estimate of the clean latent of each denoising slot, in the dtype of its input.
        """
        self.cache.begin(round)
        groups = self._groups(round.slots)
        together = [groups] if self.order == "layers" else [[group] for group in groups]
        results: dict[int, Tensor] = {}
        for some in together:
            results |= self._forward(some, round.steps, latents, levels, text)
        self.cache.end(round)
        return results

    def _groups(self, slots: Sequence[Slot]) -> list[list[Slot]]:
        if self.order == "batched":
            return [list(group) for _, group in groupby(slots, key=lambda slot: slot.frames)]
        return [[slot] for slot in slots]

    def _forward(
        self,
        groups: Sequence[list[Slot]],
        steps: int,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> dict[int, Tensor]:
        """Advance the groups layer by layer; each group is one batch."""
        batches = [
            Batch(self.dit, group, self.cache.view(group), steps, latents, levels, text) for group in groups
        ]
        for layer in range(self.dit.config.layers):
            queries = [self.dit.project(b.state, layer, b.pages) for b in batches]
            last = layer == self.dit.config.layers - 1
            for batch, q in zip(batches, queries, strict=True):
                if last:
                    q = batch.drop_store(q)
                if batch.slots:
                    self.dit.attend(batch.state, layer, q, batch.pages)
                    if layer == self.probe:
                        self._probed |= batch.mean_hidden()
        return {stage: x0 for batch in batches for stage, x0 in batch.finish(self.dit).items()}


class Batch:
    """Slots of equal length on their way through the layers.

    Parameters as of `LocalPlacement.run`; `time` and `rope` as of `CausalWanDiT.begin`.
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        slots: list[Slot],
        pages: PageView,
        steps: int,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
        time: tuple[Tensor, Tensor] | None = None,
        rope: Tensor | None = None,
    ) -> None:
        weight = dit.patch_embedding.weight
        self.slots = slots
        self.pages = pages
        self.steps = steps
        self.latents = torch.stack([latents[slot.stage] for slot in slots])
        frames = slots[0].frames
        told = [[levels[slot.stage].timestep] * frames for slot in slots]
        true = [[1000 * levels[slot.stage].sigma] * frames for slot in slots]
        positions = [list(range(slot.frame_start, slot.frame_start + frames)) for slot in slots]
        self.sigma_timesteps = upload(torch.tensor(true, dtype=torch.float64, device="cpu"), weight.device)
        self.state: SlotState = dit.begin(
            self.latents.to(weight.dtype),
            upload(torch.tensor(told, dtype=torch.float64, device="cpu"), weight.device),
            upload(torch.tensor(positions, device="cpu"), weight.device),
            TextContext.stack([text[slot.chunk] for slot in slots]),
            time,
            rope,
        )

    def drop_store(self, q: Tensor) -> Tensor:
        """Go on without the store slot, which is done once its last keys are written.

        It is the first of the slots where there is one. Returns the queries of the others.
        """
        if self.slots[0].stage != self.steps:
            return q
        state, pages = self.state, self.pages
        self.slots = self.slots[1:]
        self.latents = self.latents[1:]
        self.sigma_timesteps = self.sigma_timesteps[1:]
        self.state = SlotState(
            hidden=state.hidden[1:],
            modulation=state.modulation[1:],
            time=state.time[1:],
            rope=state.rope[1:],
            text=TextContext(tuple(k[1:] for k in state.text.keys), tuple(v[1:] for v in state.text.values)),
            latents=state.latents[1:],
            timesteps=state.timesteps[1:],
        )
        self.pages = replace(pages, read_table=pages.read_table[1:], read_lengths=pages.read_lengths[1:])
        return q[1:]

    def mean_hidden(self) -> dict[int, Tensor]:
        """Mean over the tokens of each slot, [D] by stage."""
        return dict(zip([slot.stage for slot in self.slots], self.state.hidden.mean(1), strict=True))

    def finish(self, dit: CausalWanDiT) -> dict[int, Tensor]:
        """Clean-latent estimate of each slot left."""
        if not self.slots:
            return {}
        x0 = dit.to_x0(dit.finish(self.state), self.latents, self.sigma_timesteps).to(self.latents.dtype)
        return dict(zip([slot.stage for slot in self.slots], x0, strict=True))


def local_cache(
    dit: CausalWanDiT,
    size: PoolSize,
    height: int,
    width: int,
    pool: PagePool | None = None,
    poison: bool = False,
) -> ContextCache:
    """A session's cache for latents of `height` x `width`, on a pool of its own unless one is given."""
    grid = height // dit.config.patch[1], width // dit.config.patch[2]
    weight = dit.patch_embedding.weight
    if pool is None:
        pool = PagePool(
            dit.config.layers,
            size,
            dit.tokens_per_frame(height, width),
            dit.config.heads,
            dit.config.head_dim,
            weight.dtype,
            weight.device,
            poison=poison,
            int8_keys=dit.int8_keys,
        )
    return ContextCache(pool, lambda positions: rope_table(positions[:, None], *grid, dit.config.head_dim))
