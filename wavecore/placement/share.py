"""What one rank computes of a stream: passes of its slots, keys and values exchanged layer by layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wavecore.cache import ContextCache, PagePool, PageTable
from wavecore.cache.keys import turn_keys
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.models.rope import rope_table
from wavecore.placement import protocol
from wavecore.placement.exchange import Arrival, Exchange, Target
from wavecore.placement.local import Batch
from wavecore.rounds import NoiseLevel, Slot
from wavecore.transfer import upload


@dataclass
class Work:
    """A slot that a rank computes in a tick, who is sent its keys and values, and what it waits for.

    That is what it reads from other ranks and no slot before it on this one has waited for; for the last slot
    also what only later ticks read.
    """

    slot: Slot
    targets: list[Target]
    arrivals: list[Arrival]


class ShareRunner:
    """Runs the slots of one stream on one rank.

    Parameters
    ----------
    dit : CausalWanDiT
    pool : PagePool
        Of the rank.
    table : PageTable
        Of the stream.
    grid : (rows, columns)
        Tokens of a latent frame.
    exchange : Exchange
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        pool: PagePool,
        table: PageTable,
        grid: tuple[int, int],
        exchange: Exchange,
    ) -> None:
        self.dit, self._grid, self._exchange = dit, grid, exchange
        self.cache = ContextCache(
            pool, lambda positions: rope_table(positions[:, None], *grid, dit.config.head_dim), table
        )
        self._embedded: dict[int, tuple[float, int, tuple[Tensor, Tensor]]] = {}  # by stage

    def text(self, message: protocol.Text) -> TextContext:
        """A condition, where this rank computes."""
        device = self.cache.pool.device
        keys, values = (
            tuple(upload(tensor, device) for tensor in tensors) for tensors in (message.keys, message.values)
        )
        return TextContext(keys, values)

    def arrival(self, slot: Slot, rank: int) -> Arrival:
        """A slot that is computed on another rank and sent here."""
        table = self.cache.table
        pages, unroped = table.write_ids(slot), table.unroped_ids(slot)
        rotate = self._late_rotation(slot, pages, unroped) if slot.keep_unroped else None
        return Arrival(slot, rank, pages, unroped, rotate)

    @torch.inference_mode()
    def run(
        self,
        tick: int,
        work: Work,
        last: bool,
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        steps: int,
        latent: Callable[[], Tensor],
        text: TextContext,
    ) -> Tensor | None:
        """Run a slot.

        Parameters
        ----------
        tick : int
        work : Work
        last : bool
            Whether it is the last of the rank in this tick.
        levels : mapping of stage to NoiseLevel, or a sequence
        steps : int
            Denoising stages.
        latent : callable
            Waits for its input, float32 [c, f, h, w]; called when all that needs none is done.
        text : TextContext
            Prompt of the chunk, with a batch of 1.

        Returns
        -------
        Tensor [c, f, h, w] or None
            Estimate of the clean latent; None of the store pass.
        """
        dit, exchange, slot = self.dit, self._exchange, work.slot
        pages = self.cache.view([slot])
        exchange.begin(tick, slot, pages, work.targets, work.arrivals, last)
        device = self.cache.pool.device
        positions = torch.arange(slot.frame_start, slot.frame_start + slot.frames, device=device)
        rope = rope_table(positions[None], *self._grid, dit.config.head_dim)
        time = self._time(slot, levels[slot.stage].timestep)
        latents, texts = {slot.stage: upload(latent(), device)}, {slot.chunk: text}
        batch = Batch(dit, [slot], pages, steps, latents, levels, texts, time, rope)
        rotations = [arrival.rotate for arrival in work.arrivals if arrival.rotate is not None]
        layers = dit.config.layers
        for layer in range(layers):
            exchange.acquire(layer)
            q = dit.project(batch.state, layer, pages)
            exchange.publish(layer)
            if layer == layers - 1:
                q = batch.drop_store(q)
            exchange.gate(layer)
            for rotate in rotations:
                rotate(layer)
            if batch.slots:
                dit.attend(batch.state, layer, q, batch.pages)
            exchange.attended(layer)
        x0 = batch.finish(dit).get(slot.stage)
        return None if x0 is None else x0.cpu()

    def _time(self, slot: Slot, timestep: float) -> tuple[Tensor, Tensor]:
        """Embedding of a noise level: a stage has the same one in nearly every round."""
        known = self._embedded.get(slot.stage)
        if known is None or known[:2] != (timestep, slot.frames):
            device = self.cache.pool.device
            timesteps = torch.full((1, slot.frames), timestep, dtype=torch.float64, device=device)
            known = self._embedded[slot.stage] = timestep, slot.frames, self.dit.embed_time(timesteps)
        return known[2]

    def _late_rotation(
        self, slot: Slot, pages: Sequence[int], unroped: Sequence[int]
    ) -> Callable[[int], None]:
        """Rotates, in one layer, keys that come without rotation, since they will be needed so again."""
        pool = self.cache.pool
        positions = torch.arange(slot.frame_start, slot.frame_start + slot.frames, device=pool.device)
        ids = torch.tensor([unroped, pages], dtype=torch.int32, device=pool.device)
        rope = self.cache.rope(positions)
        return lambda layer: turn_keys(
            pool.unroped_pages[layer], ids[0], pool.k_pages[layer], ids[1], rope, pool.key_staging
        )


@torch.inference_mode()
def listen(exchange: Exchange, layers: int, tick: int, arrivals: Sequence[Arrival]) -> None:
    """Go through a tick without a slot on this rank: take what is sent."""
    exchange.begin(tick, None, None, [], arrivals, True)
    for layer in range(layers):
        exchange.gate(layer)
        for arrival in arrivals:
            if arrival.rotate is not None:
                arrival.rotate(layer)
        exchange.attended(layer)


def share_out(
    slots: Sequence[Slot], arrivals: Sequence[Arrival]
) -> tuple[list[list[Arrival]], list[Arrival]]:
    """For each slot of a rank what it is the first to read of what arrives; and what none of them reads."""
    left = list(arrivals)
    parts: list[list[Arrival]] = []
    for slot in slots:
        reads = {read.key for read in slot.reads}
        parts.append([arrival for arrival in left if arrival.slot.key in reads])
        left = [arrival for arrival in left if arrival.slot.key not in reads]
    return parts, left
