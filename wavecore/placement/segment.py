"""The memory that one rank shares with the others: counters, mailboxes, pages."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import PoolSize

ALIGNMENT = 4096
FLAG_BYTES = 128  # as in csrc/scheduler/driver.h
# Latents that a rank has taken in a tick were sent in the one before. With the credits of two generations, a
# mailbox is free again after three ticks.
MAILBOXES = 3


def aligned(count: int) -> int:
    """Round up to whole memory pages."""
    return -(-count // ALIGNMENT) * ALIGNMENT


@dataclass(frozen=True)
class StreamShape:
    """Sizes that every stage of a stream has in common.

    Attributes
    ----------
    stages : int
        Denoising stages and the store.
    ranks : int
        That compute them.
    layers, page_tokens, heads, head_dim : int
        Of a page, which is one latent frame in every layer.
    chunk_frames : int
        Latent frames of the longest chunk.
    latent : (channels, height, width)
        Of a latent frame; latents are float32.
    dtype : torch.dtype
        Of the pages.
    """

    stages: int
    ranks: int
    layers: int
    page_tokens: int
    heads: int
    head_dim: int
    chunk_frames: int
    latent: tuple[int, int, int]
    dtype: torch.dtype

    @cached_property
    def page_bytes(self) -> int:
        """Keys, or values, of one latent frame in one layer."""
        return self.page_tokens * self.heads * self.head_dim * self.dtype.itemsize

    @property
    def latent_bytes(self) -> int:
        """The latents of a chunk."""
        return 4 * self.chunk_frames * math.prod(self.latent)

    def edge_bytes(self, frames: int) -> int:
        """What goes over one edge in one layer: keys and values of `frames` latent frames."""
        return 2 * frames * self.page_bytes


@dataclass(frozen=True)
class Layout:
    """Where everything lies in the segment of one rank, as offsets in bytes.

    Parameters
    ----------
    shape : StreamShape
    pool : PoolSize
        Pages of this rank.
    staging : int
        Generations of a buffer in which keys and values arrive, for an exchange that does not write to pages.
    elsewhere : bool
        Whether the pages lie in memory of a device, not in the segment.
    """

    shape: StreamShape
    pool: PoolSize
    staging: int = 0
    elsewhere: bool = False

    def ready(self, stage: int, rank: int) -> int:
        """Counters of the layers that a rank has sent here of a stage."""
        return FLAG_BYTES * self.shape.layers * (stage * self.shape.ranks + rank)

    def credit(self, rank: int) -> int:
        """Counters of the layers that a rank has read of what this one sent."""
        return self.ready(self.shape.stages, rank)

    def latent_ready(self, stage: int, rank: int) -> int:
        """Counter of the latents that a rank has sent here for a stage."""
        return self.credit(self.shape.ranks) + FLAG_BYTES * (stage * self.shape.ranks + rank)

    def mailbox(self, stage: int, tick: int) -> int:
        """Latents for a stage that are sent in a tick."""
        number = stage * MAILBOXES + tick % MAILBOXES
        return aligned(self.latent_ready(self.shape.stages, 0)) + number * aligned(self.shape.latent_bytes)

    def arrival(self, stage: int, tick: int) -> int:
        """Buffer for what is sent here of a stage in a tick: layers, each keys then values."""
        generation = tick % self.staging if self.staging else 0
        number = (generation * self.shape.stages + stage) * self.shape.layers
        return self.mailbox(self.shape.stages, 0) + number * self.buffer_stride

    @cached_property
    def buffer_stride(self) -> int:
        """From one layer to the next in a buffer."""
        return self.shape.edge_bytes(self.shape.chunk_frames)

    @cached_property
    def pages(self) -> int:
        """Keys, then values, then un-roped keys, each layer by layer."""
        buffers = self.staging * self.shape.stages * self.shape.layers * self.buffer_stride
        return aligned(self.arrival(0, 0) + buffers)

    @cached_property
    def page_stride(self) -> int:
        """From one layer of keys or values to the next."""
        return self.pool.pages * self.shape.page_bytes

    @cached_property
    def unroped_stride(self) -> int:
        """From one layer of un-roped keys to the next."""
        return self.pool.unroped_pages * self.shape.page_bytes

    def keys(self, page: int) -> int:
        """Keys of a page in layer 0."""
        return self.pages + page * self.shape.page_bytes

    def values(self, page: int) -> int:
        """Values of a page in layer 0."""
        return self.keys(page) + self.shape.layers * self.page_stride

    def unroped(self, page: int) -> int:
        """Un-roped keys of a page in layer 0."""
        start = self.pages + 2 * self.shape.layers * self.page_stride
        return start + page * self.shape.page_bytes

    @property
    def bytes(self) -> int:
        """Size of the segment."""
        return self.pages if self.elsewhere else aligned(self.pages + self.pages_bytes)

    @property
    def pages_bytes(self) -> int:
        """Size of all pages."""
        return self.unroped(0) - self.pages + self.shape.layers * self.unroped_stride


def tensor_at(address: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Tensor on memory that somebody else keeps alive."""
    count = math.prod(shape) * dtype.itemsize
    if not count:
        return torch.empty(shape, dtype=dtype)
    memory: Any = (ctypes.c_char * count).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def placed(address: int, dtype: torch.dtype) -> Callable[[tuple[int, ...]], Tensor]:
    """Puts tensors one after the other from an address on, for `PagePool`."""
    at = address

    def place(shape: tuple[int, ...]) -> Tensor:
        nonlocal at
        tensor = tensor_at(at, shape, dtype)
        at += tensor.numel() * dtype.itemsize
        return tensor

    return place
