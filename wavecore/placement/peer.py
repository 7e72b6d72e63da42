"""Exchange between devices: pages that ranks on one machine map from each other, counters in shared memory.

Keys and values are copied straight into the reader's page, over NVLink or PCIe where ranks have GPUs. PyTorch
shares the memory of the pages (CUDA IPC; of a CPU, shared memory). The host waits for a copy before it says
that it is there, and for the attention of a layer before it gives its pages back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
import torch.multiprocessing  # lets ForkingPickler share tensors
from torch import Tensor

from wavecore.cache import PageView
from wavecore.placement.exchange import Arrival, Target, runs
from wavecore.placement.protocol import Setup
from wavecore.placement.segment import Layout
from wavecore.placement.shared import Copies, SharedExchange
from wavecore.rounds import Slot
from wavecore.transfer import wait_for


class DevicePages:
    """The pages of one rank in one piece of memory of a device.

    Parameters
    ----------
    layout : Layout
    memory : Tensor uint8
        Of `layout.pages_bytes`.
    """

    def __init__(self, layout: Layout, memory: Tensor) -> None:
        at = 0

        def place(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
            nonlocal at
            start, at = at, at + math.prod(sizes) * dtype.itemsize
            return memory[start:at].view(dtype).view(sizes)

        self.memory = memory
        self.pool = layout.shape.pool(layout.pool, place, memory.device)

    @staticmethod
    def allocate(layout: Layout, device: torch.device) -> DevicePages:
        """Pages of this rank, all zero."""
        return DevicePages(layout, torch.zeros(layout.pages_bytes, dtype=torch.uint8, device=device))

    @staticmethod
    def open(layout: Layout, handle: bytes) -> DevicePages:
        """Pages of another rank, which writes and reads them too."""
        return DevicePages(layout, ForkingPickler.loads(handle))

    def share(self) -> bytes:
        """What `open` takes, once, in another process of this machine while this one runs."""
        return bytes(ForkingPickler.dumps(self.memory))


def share_pages(setup: Setup, own: DevicePages) -> dict[int, bytes]:
    """A handle of a rank's pages for each one that sends to it: one serves once."""
    others = (rank for rank in range(setup.map.ranks) if rank != setup.rank)
    return {rank: own.share() for rank in others if setup.map.sends(rank, setup.rank)}


def open_pages(setup: Setup, own: DevicePages, handles: Mapping[int, bytes]) -> dict[int, DevicePages]:
    """Pages of a rank, and of those that it sends to."""
    there = {rank: DevicePages.open(setup.layouts[rank], handle) for rank, handle in handles.items()}
    return {setup.rank: own, **there}


class PeerExchange(SharedExchange):
    """One rank's side of the exchange; mode is "paged".

    Parameters
    ----------
    pages : dict of int to DevicePages
        Of this rank, and of those that it sends to.
    others
        As for `SharedExchange`.
    """

    def __init__(self, pages: Mapping[int, DevicePages], *others: Any) -> None:
        super().__init__(*others)
        self._pages = pages
        self._device = pages[self._rank].memory.device
        self._copies: list[Callable[[int], None]] = []  # of the slot at work, each for a layer
        self._bytes = 0
        self._last = False

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
        self._copies.clear()
        self._last = last
        super().begin(tick, slot, pages, targets, arrivals, last)

    def _outgoing(self, slot: Slot, pages: PageView, target: Target, tick: int) -> Copies:
        """Note the copies; the scheduler, which knows the host's memory, makes none."""
        here, there = self._pages[self._rank].pool, self._pages[target.rank].pool
        values = list(zip(pages.write_ids[0].tolist(), target.pages, strict=True))
        if slot.keep_unroped:
            assert pages.unroped_ids is not None
            keys = list(zip(pages.unroped_ids[0].tolist(), target.unroped, strict=True))
            self._copies.append(self._copy(here.unroped_pages, there.unroped_pages, keys))
        else:
            self._copies.append(self._copy(here.k_pages, there.k_pages, values))
        self._copies.append(self._copy(here.v_pages, there.v_pages, values))
        self._bytes += self._shape.layers * self._shape.edge_bytes(slot.frames, slot.keep_unroped)
        return []

    @staticmethod
    def _copy(
        source: Sequence[Tensor], target: Sequence[Tensor], pairs: list[tuple[int, int]]
    ) -> Callable[[int], None]:
        """Copy pages of a layer, as many at once as lie side by side."""
        joined = runs(pairs)

        def copy(layer: int) -> None:
            for first, to, count in joined:
                target[layer][to : to + count].copy_(source[layer][first : first + count], non_blocking=True)

        return copy

    def publish(self, layer: int) -> None:
        """After the layer's own pages are written."""
        if self._copies:
            self._scheduler.claim(layer)
            for copy in self._copies:
                copy(layer)
            wait_for(self._device)
        super().publish(layer)

    def attended(self, layer: int) -> None:
        """After attention."""
        if self._last:
            wait_for(self._device)
        super().attended(layer)

    def hand_on(self, tick: int, stage: int, rank: int, latent: Tensor) -> None:
        """Give `rank` a latent for a stage."""
        super().hand_on(tick, stage, rank, latent.cpu())

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""
        return self._bytes
