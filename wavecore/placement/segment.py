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

from wavecore import ops
from wavecore.cache import PagePool, PoolSize

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
    int8_keys : bool
        Whether keys are held and sent in int8, those before rotation aside.
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
    int8_keys: bool = False

    @cached_property
    def page_bytes(self) -> int:
        """Values, or keys before rotation, of one latent frame in one layer."""
        return self.page_tokens * self.heads * self.head_dim * self.dtype.itemsize

    @cached_property
    def key_bytes(self) -> int:
        """Keys of one latent frame in one layer."""
        if self.int8_keys:
            return ops.key_page_bytes(self.page_tokens, self.heads, self.head_dim)
        return self.page_bytes

    @property
    def latent_bytes(self) -> int:
        """The latents of a chunk."""
        return 4 * self.chunk_frames * math.prod(self.latent)

    def edge_bytes(self, frames: int, unroped: bool) -> int:
        """What goes over one edge in one layer: keys, or those before rotation, and values of frames."""
        return frames * ((self.page_bytes if unroped else self.key_bytes) + self.page_bytes)

    def pool(
        self,
        size: PoolSize,
        place: Callable[[tuple[int, ...], torch.dtype], Tensor],
        device: torch.device | str = "cpu",
    ) -> PagePool:
        """Pages of a rank where `place` puts them."""
        return PagePool(
            self.layers,
            size,
            self.page_tokens,
            self.heads,
            self.head_dim,
            self.dtype,
            device,
            place=place,
            int8_keys=self.int8_keys,
        )


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
        return max(self.shape.edge_bytes(self.shape.chunk_frames, unroped) for unroped in (False, True))

    @cached_property
    def pages(self) -> int:
        """Keys, then values, then un-roped keys, each layer by layer."""
        buffers = self.staging * self.shape.stages * self.shape.layers * self.buffer_stride
        return aligned(self.arrival(0, 0) + buffers)

    @cached_property
    def key_stride(self) -> int:
        """From one layer of keys to the next."""
        return self.pool.pages * self.shape.key_bytes

    @cached_property
    def page_stride(self) -> int:
        """From one layer of values to the next."""
        return self.pool.pages * self.shape.page_bytes

    @cached_property
    def unroped_stride(self) -> int:
        """From one layer of un-roped keys to the next."""
        return self.pool.unroped_pages * self.shape.page_bytes

    def keys(self, page: int) -> int:
        """Keys of a page in layer 0."""
        return self.pages + page * self.shape.key_bytes

    def values(self, page: int) -> int:
        """Values of a page in layer 0."""
        return self.pages + self.shape.layers * self.key_stride + page * self.shape.page_bytes

    def unroped(self, page: int) -> int:
        """Un-roped keys of a page in layer 0."""
        return self.values(0) + self.shape.layers * self.page_stride + page * self.shape.page_bytes

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


def placed(address: int) -> Callable[[tuple[int, ...], torch.dtype], Tensor]:
    """Puts tensors one after the other from an address on, for `PagePool`."""
    at = address

    def place(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        nonlocal at
        tensor = tensor_at(at, shape, dtype)
        at += tensor.numel() * dtype.itemsize
        return tensor

    return place
