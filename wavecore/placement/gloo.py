"""Exchange by messages, over `torch.distributed`, where ranks share no memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.cache import PagePool, PageView
from wavecore.errors import WavecoreError
from wavecore.placement.exchange import Arrival, ExchangeMode, Target
from wavecore.placement.segment import StreamShape
from wavecore.rounds import Slot


class GlooExchange:
    """One rank's side of the exchange; ranks are those of the default process group.

    A message is received only when its pages are free, so it needs no credit: the sender's message waits.

    Parameters
    ----------
    shape : StreamShape
    mode : "sync", "early" or "paged"
    generations : int
        Rounds whose messages may be on their way at once.
    pool : PagePool
        Of this rank.
    record : bool
        Keep what happened for `take_records`.
    """

    def __init__(
        self, shape: StreamShape, mode: ExchangeMode, generations: int, pool: PagePool, record: bool = False
    ) -> None:
        self._shape, self._mode, self._generations, self._pool = shape, mode, generations, pool
        self._sent: deque[tuple[int, list[list[Any]]]] = deque()
        self._handed: deque[tuple[int, Any, Tensor]] = deque()
        self._coming: dict[int, list[list[tuple[Any, Tensor | None]]]] = {}  # by stage, then layer
        self._bytes = 0
        self._record = record
        self._records: list[Mapping[str, Any]] = []
        self._attending = 0.0
        self._reason: str | None = None

    # -- latents -------------------------------------------------------------------------

    def latent(self, tick: int, stage: int, rank: int, frames: int) -> Tensor:
        """What `rank` has handed on for a stage in the tick before."""
        channels, height, width = self._shape.latent
        latent = torch.empty(channels, frames, height, width)
        work = dist.irecv(latent, rank, tag=self._latent_tag(stage))
        self._finish(work, f"rank {rank}", f"latents for stage {stage}")
        return latent

    def hand_on(self, tick: int, stage: int, rank: int, latent: Tensor) -> None:
        """Give `rank` a latent for a stage."""
        while self._handed and self._handed[0][0] <= tick - 2:
            _, work, _ = self._handed.popleft()
            self._finish(work, "a rank", "to take latents")
        latent = latent.float().contiguous()
        work = dist.isend(latent, rank, tag=self._latent_tag(stage))
        self._handed.append((tick, work, latent))

    # Messages of one tag come in the order they are sent in; a rank runs its stages in an order of its own.
    def _tag(self, stage: int, layer: int) -> int:
        return stage * self._shape.layers + layer

    def _latent_tag(self, stage: int) -> int:
        return self._tag(self._shape.stages, 0) + stage

    # -- keys and values -----------------------------------------------------------------

    def expect(self, tick: int, arrivals: Sequence[Arrival]) -> None:
        """Begin a tick: ask for everything that others send in it, so that nobody waits to send it."""
        self._tick = tick
        self._sent.append((tick, [[] for _ in range(self._shape.layers)]))
        self._coming = {
            arrival.slot.stage: [self._receive(arrival, layer) for layer in range(self._shape.layers)]
            for arrival in arrivals
        }

    def _receive(self, arrival: Arrival, layer: int) -> list[tuple[Any, Tensor | None]]:
        """Ask for a slot's keys and values of a layer: into pages, or into a buffer."""
        tag = self._tag(arrival.slot.stage, layer)
        if self._mode == "paged":
            pages = self._targets(arrival, layer)
            return [(dist.irecv(page, arrival.rank, tag=tag), None) for page in pages]
        slot = arrival.slot
        buffer = torch.empty(self._shape.edge_bytes(slot.frames, slot.keep_unroped), dtype=torch.uint8)
        return [(dist.irecv(buffer, arrival.rank, tag=tag), buffer)]

    def _targets(self, arrival: Arrival, layer: int) -> list[Tensor]:
        """Bytes of the pages here for the keys, then the values, of another rank's slot."""
        pool, unroped = self._pool, arrival.slot.keep_unroped
        keys = pool.unroped_pages[layer] if unroped else pool.k_pages[layer]
        key_ids = arrival.unroped if unroped else arrival.pages
        pages = [keys[page] for page in key_ids] + [pool.v_pages[layer][page] for page in arrival.pages]
        return [_bytes(page) for page in pages]

    def begin(
        self,
        tick: int,
        slot: Slot | None,
        pages: PageView | None,
        targets: Sequence[Target],
        arrivals: Sequence[Arrival],
        last: bool,
    ) -> None:
        """Begin a slot of a tick."""
        self._slot, self._pages, self._targets_there = slot, pages, targets
        self._arrivals = arrivals

    def acquire(self, layer: int) -> None:
        """Before the layer's own pages are written."""
        while self._sent and self._sent[0][0] < self._tick - self._generations:
            self._sent.popleft()
        for tick, works in self._sent:
            if tick <= self._tick - self._generations:
                for work, _ in works[layer]:
                    self._finish(work, "a cleaner stage's reader", f"layer {layer}")
                works[layer].clear()

    def publish(self, layer: int) -> None:
        """After they are written."""
        parts = self._written(layer)
        messages = [torch.cat(parts)] if parts and self._mode != "paged" else parts
        works = self._sent[-1][1][layer]
        for target in self._targets_there:
            assert self._slot is not None
            began = time.perf_counter()
            for message in messages:
                work = dist.isend(message, target.rank, tag=self._tag(self._slot.stage, layer))
                works.append((work, message))
                self._bytes += message.numel()
            self._note("publish", layer, began, (self._slot.stage, target.reader))
        if self._mode == "sync":
            for work, _ in works:
                self._finish(work, "a rank", f"to take layer {layer}")
            works.clear()

    def _written(self, layer: int) -> list[Tensor]:
        """Bytes of the pages of the slot's keys, then of its values."""
        pages, slot = self._pages, self._slot
        if pages is None or slot is None:
            return []
        keys, key_ids = pages.k_pages, pages.write_ids
        if slot.keep_unroped:
            assert pages.unroped_pages is not None and pages.unroped_ids is not None
            keys, key_ids = pages.unroped_pages, pages.unroped_ids
        written = [keys[layer][page] for page in key_ids[0].tolist()]
        written += [pages.v_pages[layer][page] for page in pages.write_ids[0].tolist()]
        return [_bytes(page) for page in written]

    def gate(self, layer: int) -> None:
        """Before attention."""
        for arrival in self._arrivals:
            stage, began = arrival.slot.stage, time.perf_counter()
            buffers = []
            for work, buffer in self._coming[stage][layer]:
                self._finish(work, f"rank {arrival.rank}", f"layer {layer} of stage {stage}")
                buffers += [] if buffer is None else [buffer]
            self._note("wait", layer, began, (stage, stage if self._slot is None else self._slot.stage))
            for buffer in buffers:
                targets = self._targets(arrival, layer)
                for target, part in zip(targets, buffer.split([len(page) for page in targets]), strict=True):
                    target.copy_(part)
            self._coming[stage][layer] = []
        self._attending = time.perf_counter()

    def attended(self, layer: int) -> None:
        """After attention."""
        self._note("attend", layer, self._attending, (None, None))

    def cancel(self, reason: str) -> None:
        """Give the reason to the next error; a message that is waited for cannot be called off."""
        self._reason = reason

    def _finish(self, work: Any, peer: str, what: str) -> None:
        try:
            work.wait()
        except RuntimeError as error:
            reason = (
                self._reason
                or f"{peer}: expected {what}, the connection ended ({str(error).splitlines()[0]})"
            )
            raise WavecoreError(reason) from None

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""
        return self._bytes

    def _note(self, step: str, layer: int, began: float, edge: tuple[int | None, int | None]) -> None:
        if self._record:
            ended = time.perf_counter()
            self._records.append(
                {
                    "step": step,
                    "layer": layer,
                    "tick": self._tick,
                    "from": edge[0],
                    "to": edge[1],
                    "begin": began,
                    "end": ended,
                    # When a message came is not told: while it is waited for, or before.
                    "written": ended,
                }
            )

    def take_records(self) -> list[Mapping[str, Any]]:
        """What happened since the last call, as of `SharedExchange`; a wait for each message."""
        taken, self._records = self._records, []
        return taken


def _bytes(page: Tensor) -> Tensor:
    """A page as what goes over a connection, which knows no type of its own for some dtypes."""
    return page.view(-1).view(torch.uint8)
