"""Inputs of the operations for the device report."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from wavecore import ops

EPS = 1e-6


def takes_float8(device: str) -> bool:
    """Whether attention with float8 values runs there: a GPU has such products from 8.9 on."""
    return device == "cpu" or torch.cuda.get_device_capability(device) >= (8, 9)


@dataclass
class Inputs:
    """Arguments of the operations for one shape."""

    device: str
    tokens: int
    frames: int
    heads: int
    head_dim: int
    pages: int
    page_tokens: int
    dtype: torch.dtype = torch.bfloat16
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.dim = self.heads * self.head_dim
        self.x, self.y = self.rows(), self.rows()
        self.shift, self.scale, self.gate = (
            torch.randn(1, self.frames, self.dim, device=self.device, dtype=self.dtype) for _ in range(3)
        )
        self.weight = torch.randn(self.dim, device=self.device, dtype=self.dtype)
        angles = torch.randn(1, self.tokens, self.head_dim // 2, device=self.device)
        self.rope = torch.stack((angles.cos(), angles.sin()), -1)
        self.k_pages, self.v_pages = self.some_pages(), self.some_pages()
        order = torch.randperm(self.pages, device=self.device)
        self.table = order[None].int()
        self.lengths = torch.full_like(self.table, self.page_tokens)
        self.ids = self.table[:, : -(-self.tokens // self.page_tokens)].contiguous()

    def rows(self) -> Tensor:
        return torch.randn(1, self.tokens, self.dim, device=self.device, dtype=self.dtype)

    def some_pages(self) -> Tensor:
        shape = (self.pages, self.page_tokens, self.heads, self.head_dim)
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    @property
    def q(self) -> Tensor:
        return self.x.unflatten(-1, (self.heads, self.head_dim))

    def leave_a_tail(self) -> None:
        """Fill one page in part, with NaN behind that, and leave another empty."""
        half = self.page_tokens * 3 // 5
        self.lengths[0, 3], self.lengths[0, 1] = half, 0
        for pages in (self.k_pages, self.v_pages):
            pages[self.table[0, 3].long(), half:] = torch.nan
            pages[self.table[0, 1].long()] = torch.nan

    def write(self) -> tuple[Any, ...]:
        """Arguments of the page write: own pages, pages before rotation, those of a peer, all fresh."""
        fresh = [torch.zeros_like(self.k_pages) for _ in range(5)]
        return (
            *(self.x, self.y, self.x, self.weight, self.weight, self.rope),
            *(*fresh[:2], self.ids, EPS, fresh[2], self.ids, *fresh[3:], self.ids),
        )

    def attention(self) -> tuple[Any, ...]:
        """Arguments of attention."""
        return (self.q, self.k_pages, self.v_pages, self.table, self.lengths, self.head_dim**-0.5)

    def key_pages(self) -> ops.QuantizedKeyPages:
        made = ops.empty_key_pages(*self.k_pages.shape, device=self.device)
        ops.quantize_key_pages(self.k_pages, self.table[0], self.lengths[0], made)
        return made

    def value_pages(self) -> ops.QuantizedValuePages:
        made = ops.empty_value_pages(*self.v_pages.shape, device=self.device)
        ops.quantize_value_pages(self.v_pages, self.table[0], self.lengths[0], made)
        return made
