"""One stage of a wavefront at work: a forward pass a round, its keys and values exchanged layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from wavecore import ops
from wavecore.cache import ContextCache, PagePool
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.models.rope import rope_table
from wavecore.placement.exchange import Exchange, Stream
from wavecore.placement.local import Batch
from wavecore.rounds import NoiseLevel, Round, Slot


class StageRunner:
    """Runs the rounds of one stage of one stream.

    Parameters
    ----------
    dit : CausalWanDiT
    job : Stream
    stage : int
    pool : PagePool
        Of this stage alone.
    grid : (rows, columns)
        Tokens of a latent frame.
    exchange : Exchange
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        job: Stream,
        stage: int,
        pool: PagePool,
        grid: tuple[int, int],
        exchange: Exchange,
    ) -> None:
        self.dit, self.job, self.stage, self._grid = dit, job, stage, grid
        self.cache = ContextCache(
            pool, lambda positions: rope_table(positions[:, None], *grid, dit.config.head_dim)
        )
        self._exchange = exchange
        self._embedded: tuple[float, int, tuple[Tensor, Tensor]] | None = None

    @torch.inference_mode()
    def prepare(
        self,
        index: int,
        round: Round,
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        sent: Round | None = None,
    ) -> None:
        """Get ready for round `index` of the stream: all that needs no input, so that nothing waits for it.

        Parameters
        ----------
        index : int
        round : Round
        levels : sequence of NoiseLevel
        sent : Round, optional
            The same with those of its slots that this stage writes or is sent, where it has others too.
        """
        dit, job, cache = self.dit, self.job, self.cache
        sent = round if sent is None else sent
        self._round, self._slot = round, job.own(self.stage, round)
        self._levels = levels
        cache.begin(round)
        self._pages = None if self._slot is None else cache.view([self._slot])
        self._exchange.begin(job.first_tick + index, index, sent, self._pages)
        self._turn = self._late_rotation(sent)
        if (slot := self._slot) is None:
            return
        positions = torch.arange(slot.frame_start, slot.frame_start + slot.frames)
        self._rope = rope_table(positions[None], *self._grid, dit.config.head_dim)
        told = levels[slot.stage].timestep
        if self._embedded is None or self._embedded[:2] != (told, slot.frames):
            # A stage has the same noise level in nearly every round.
            timesteps = torch.full((1, slot.frames), told, dtype=torch.float64)
            self._embedded = told, slot.frames, dit.embed_time(timesteps)

    @torch.inference_mode()
    def run(self, latent: Tensor, text: TextContext) -> Tensor | None:
        """Run the round that was prepared.

        Parameters
        ----------
        latent : Tensor [c, f, h, w]
            Its input, float32.
        text : TextContext
            Prompt of the chunk, with a batch of 1.

        Returns
        -------
        Tensor [c, f, h, w] or None
            Estimate of the clean latent; None of the store pass.
        """
        dit, exchange, slot, pages = self.dit, self._exchange, self._slot, self._pages
        assert slot is not None and pages is not None and self._embedded is not None
        batch = Batch(
            dit,
            [slot],
            pages,
            self._round.steps,
            {slot.stage: latent},
            self._levels,
            {slot.chunk: text},
            self._embedded[2],
            self._rope,
        )
        layers = dit.config.layers
        for layer in range(layers):
            exchange.acquire(layer)
            q = dit.project(batch.state, layer, pages)
            exchange.publish(layer)
            if layer == layers - 1:
                q = batch.drop_store(q)
            if batch.slots:
                exchange.gate(layer)
                if self._turn is not None:
                    self._turn(layer)
                dit.attend(batch.state, layer, q, batch.pages)
                exchange.attended(layer)
        self.cache.end(self._round)
        return batch.finish(dit).get(self.stage)

    @torch.inference_mode()
    def listen(self) -> None:
        """Go through the round that was prepared without a slot of its own: take what is sent."""
        exchange = self._exchange
        for layer in range(self.dit.config.layers):
            exchange.acquire(layer)
            exchange.publish(layer)
            exchange.gate(layer)
            if self._turn is not None:
                self._turn(layer)
            exchange.attended(layer)
        self.cache.end(self._round)

    def _late_rotation(self, round: Round) -> Callable[[int], None] | None:
        """Rotates, in one layer, keys that came without rotation, since they will be needed so again."""
        came = [slot for slot in round.slots if slot.keep_unroped and slot.stage != self.stage]
        if not came:
            return None
        cache, pool = self.cache, self.cache.pool
        positions = [slot.frame_start + frame for slot in came for frame in range(slot.frames)]
        source = [page for slot in came for page in cache.table.unroped_ids(slot)]
        target = [page for slot in came for page in cache.table.write_ids(slot)]
        ids = torch.tensor([source, target], dtype=torch.int32, device=pool.device)
        rope = cache.rope(torch.tensor(positions, device=pool.device))
        return lambda layer: ops.rope_shift(
            pool.unroped_pages[layer], ids[0], pool.k_pages[layer], ids[1], rope
        )

    def pages_of(self, slot: Slot) -> tuple[list[int], list[int]]:
        """Pages, and un-roped pages, that a slot of the current round fills here."""
        return self.cache.table.write_ids(slot), self.cache.table.unroped_ids(slot)

    def close(self) -> None:
        """Give the pages back."""
        self.cache.close()
