"""Exchange by messages, over `torch.distributed`, where stages share no memory."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.cache import PagePool, PageView
from wavecore.errors import WavecoreError
from wavecore.placement.exchange import ExchangeMode, PagesOf, Stream
from wavecore.placement.segment import StreamShape
from wavecore.rounds import Round, Slot


class GlooExchange:
    """One stage's side of the exchange. Rank r of the default process group is stage r.

    A message is received only when its pages are free, so it needs no credit: the sender's message waits.

    Parameters
    ----------
    stage : int
    shape : StreamShape
    mode : "sync", "early" or "paged"
    generations : int
        Rounds whose messages may be on their way at once.
    record : bool
        Keep what happened for `take_records`.
    """

    def __init__(
        self, stage: int, shape: StreamShape, mode: ExchangeMode, generations: int, record: bool = False
    ) -> None:
        self._stage, self._shape, self._mode, self._generations = stage, shape, mode, generations
        self._sent: deque[tuple[int, list[list[Any]]]] = deque()
        self._handed: list[tuple[Any, Tensor]] = []
        self._arriving: list[list[tuple[Any, Slot, Tensor | None]]] = []
        self._to: list[int] = []
        self._job: Stream | None = None
        self._bytes = 0
        self._record = record
        self._records: list[Mapping[str, Any]] = []
        self._attending = 0.0
        self._reason: str | None = None

    def start(self, job: Stream, pool: PagePool, pages_of: PagesOf) -> None:
        """Begin a stream."""
        self._job, self._pool, self._pages_of = job, pool, pages_of

    def latent(self, tick: int, frames: int) -> Tensor:
        """What the stage before made in the round before `tick`."""
        channels, height, width = self._shape.latent
        latent = torch.empty(channels, frames, height, width)
        self._finish(dist.irecv(latent, self._stage - 1), f"stage {self._stage - 1}", "latents")
        return latent

    def no_latent(self, tick: int) -> None:
        """The stage before has made nothing, and so sends nothing."""

    def hand_on(self, tick: int, latent: Tensor) -> None:
        """Give a latent to the stage after this one."""
        while len(self._handed) >= 2:
            work, _ = self._handed.pop(0)
            self._finish(work, f"stage {self._stage + 1}", "latents")
        latent = latent.float().contiguous()
        self._handed.append((dist.isend(latent, self._stage + 1), latent))

    def begin(self, tick: int, index: int, round: Round, pages: PageView | None) -> None:
        """Begin round `index` of the stream, which is `tick` of all streams."""
        assert self._job is not None
        layers = self._shape.layers
        job, own = self._job, self._job.own(self._stage, round)
        self._pages, self._own, self._tick = pages, own, tick
        self._to = [other for other in range(self._stage) if own and job.takes(other, self._stage, tick)]
        self._from = [slot for slot in round.slots if slot is not own]
        self._sent.append((tick, [[] for _ in range(layers)]))
        self._arriving = [[] for _ in range(layers)]
        if self._mode != "sync":
            for layer in range(layers):
                self._receive(layer)

    def _receive(self, layer: int) -> None:
        """Ask for what every other stage sends of a layer."""
        for slot in self._from:
            if self._mode == "paged":
                works = [dist.irecv(page, slot.stage) for page in self._targets(slot, layer)]
                self._arriving[layer] += [(work, slot, None) for work in works]
                continue
            buffer = self._buffer(slot.frames)
            self._arriving[layer].append((dist.irecv(buffer, slot.stage), slot, buffer))

    def _buffer(self, frames: int) -> Tensor:
        shape = self._shape
        return torch.empty(2 * frames, shape.page_tokens, shape.heads, shape.head_dim, dtype=shape.dtype)

    def _targets(self, slot: Slot, layer: int) -> list[Tensor]:
        """Pages here for the keys, then the values, of another stage's slot."""
        page_ids, unroped_ids = self._pages_of(slot)
        pool = self._pool
        keys = pool.unroped_pages[layer] if slot.keep_unroped else pool.k_pages[layer]
        key_ids = unroped_ids if slot.keep_unroped else page_ids
        return [keys[page] for page in key_ids] + [pool.v_pages[layer][page] for page in page_ids]

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
        messages = [torch.stack(parts)] if parts and self._mode != "paged" else parts
        works = self._sent[-1][1][layer]
        for other in self._to:
            began = time.perf_counter()
            for message in messages:
                works.append((dist.isend(message, other), message))
                self._bytes += message.numel() * message.element_size()
            self._note("publish", layer, began, (self._stage, other))
        if self._mode == "sync":
            self._receive(layer)
            for work, _ in works:
                self._finish(work, "a stage", f"layer {layer}")
            works.clear()

    def _written(self, layer: int) -> list[Tensor]:
        """The keys, then the values, of the slot of this stage."""
        pages, own = self._pages, self._own
        if pages is None or own is None:
            return []
        keys, key_ids = pages.k_pages, pages.write_ids
        if own.keep_unroped:
            assert pages.unroped_pages is not None and pages.unroped_ids is not None
            keys, key_ids = pages.unroped_pages, pages.unroped_ids
        parts = [keys[layer][page] for page in key_ids[0].tolist()]
        return parts + [pages.v_pages[layer][page] for page in pages.write_ids[0].tolist()]

    def gate(self, layer: int) -> None:
        """Before attention."""
        for work, slot, buffer in self._arriving[layer]:
            began = time.perf_counter()
            self._finish(work, f"stage {slot.stage}", f"layer {layer}")
            self._note("wait", layer, began, (slot.stage, self._stage))
            if buffer is not None:
                for page, target in zip(buffer, self._targets(slot, layer), strict=True):
                    target.copy_(page)
        self._arriving[layer] = []
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
