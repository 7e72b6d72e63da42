"""Inputs and comparisons for the tests of the operations."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

LOW_PRECISION = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *LOW_PRECISION)


def rope_table(*shape: int) -> Tensor:
    """Cosine and sine of random angles, [*shape, 2]."""
    angles = torch.randn(shape) * 3
    return torch.stack((angles.cos(), angles.sin()), dim=-1)


def error(actual: Tensor, exact: Tensor) -> float:
    """Largest absolute difference; NaN or infinity where they differ counts as infinite."""
    assert actual.shape == exact.shape
    if actual.numel() == 0:
        return 0.0
    difference = (actual.double() - exact.double()).abs()
    difference = torch.where(actual.double() == exact.double(), 0.0, difference)
    return difference.nan_to_num(torch.inf, torch.inf).max().item()


def assert_accurate(actual: Tensor, exact: Tensor, eager: Tensor) -> None:
    """float32 within 1e-5 of the exact result; lower precision within twice PyTorch's own error.

    `exact` comes from the same numbers in float32, so it is not rounded to the dtype of `actual`.
    """
    assert actual.is_contiguous()
    if actual.dtype == torch.float32:
        assert error(actual, exact) <= 1e-5 * max(1.0, exact.abs().max().item() if exact.numel() else 1.0)
    else:
        unit = torch.finfo(actual.dtype).eps
        assert error(actual, exact) <= 2 * error(eager, exact) + unit * 1e-2


@dataclass
class PageWrite:
    """Arguments of `qkv_page_write` for `slots` slots of `tokens` tokens, every page its own."""

    slots: int = 3
    tokens: int = 29
    heads: int = 4
    head_dim: int = 24
    page_tokens: int = 12
    dtype: torch.dtype = torch.float32
    unroped: bool = True
    peer: bool = True
    arguments: dict[str, Tensor | float | None] = field(init=False)

    def __post_init__(self) -> None:
        dim = self.heads * self.head_dim
        per_slot = -(-self.tokens // self.page_tokens)
        pages = self.slots * per_slot + 3
        row = (self.slots, self.tokens, dim)
        page = (pages, self.page_tokens, self.heads, self.head_dim)
        ids = torch.randperm(pages)[: self.slots * per_slot].reshape(self.slots, per_slot).int()
        unroped_ids = torch.randperm(pages)[: self.slots * per_slot].reshape(self.slots, per_slot).int()
        peer_ids = torch.randperm(pages + 2)[: self.slots * per_slot].reshape(self.slots, per_slot).int()
        peer_page = (pages + 2, *page[1:])
        self.arguments = {
            "q": torch.randn(row, dtype=self.dtype),
            "k": torch.randn(row, dtype=self.dtype),
            "v": torch.randn(row, dtype=self.dtype),
            "q_weight": torch.randn(dim, dtype=self.dtype),
            "k_weight": torch.randn(dim, dtype=self.dtype),
            "rope": rope_table(self.slots, self.tokens, self.head_dim // 2),
            "k_pages": torch.full(page, torch.nan, dtype=self.dtype),
            "v_pages": torch.full(page, torch.nan, dtype=self.dtype),
            "page_ids": ids,
            "eps": 1e-6,
            "unroped_pages": torch.full(page, torch.nan, dtype=self.dtype) if self.unroped else None,
            "unroped_ids": unroped_ids if self.unroped else None,
            "peer_k_pages": torch.full(peer_page, torch.nan, dtype=self.dtype) if self.peer else None,
            "peer_v_pages": torch.full(peer_page, torch.nan, dtype=self.dtype) if self.peer else None,
            "peer_ids": peer_ids if self.peer else None,
        }

    def copy(self, dtype: torch.dtype | None = None) -> dict[str, Tensor | float | None]:
        """The arguments with pages of their own; floating-point tensors in `dtype` when given."""

        def one(value: Tensor | float | None) -> Tensor | float | None:
            if not isinstance(value, Tensor):
                return value
            return value.clone().to(dtype) if dtype and value.is_floating_point() else value.clone()

        return {name: one(value) for name, value in self.arguments.items()}


@dataclass
class Context:
    """Pages with poisoned tails, and a table that reads `lengths` valid tokens of random pages."""

    lengths: list[list[int]]
    tokens: int = 7
    heads: int = 3
    head_dim: int = 40
    page_tokens: int = 16
    dtype: torch.dtype = torch.float32
    q: Tensor = field(init=False)
    k_pages: Tensor = field(init=False)
    v_pages: Tensor = field(init=False)
    page_table: Tensor = field(init=False)
    page_lengths: Tensor = field(init=False)

    def __post_init__(self) -> None:
        slots, entries = len(self.lengths), len(self.lengths[0]) if self.lengths else 2
        pages = max(slots * entries, 1) + 2
        shape = (pages, self.page_tokens, self.heads, self.head_dim)
        self.q = torch.randn(slots, self.tokens, self.heads, self.head_dim, dtype=self.dtype)
        self.k_pages = torch.full(shape, torch.nan, dtype=self.dtype)
        self.v_pages = torch.full(shape, torch.nan, dtype=self.dtype)
        table = torch.randperm(pages)[: slots * entries].reshape(slots, entries).int()
        self.page_lengths = torch.tensor(self.lengths, dtype=torch.int32).reshape(slots, entries)
        self.page_table = torch.where(self.page_lengths > 0, table, -1)
        for page, length in zip(
            self.page_table.flatten().tolist(), self.page_lengths.flatten().tolist(), strict=True
        ):
            if length:
                filled = (length, self.heads, self.head_dim)
                self.k_pages[page, :length] = torch.randn(filled, dtype=self.dtype)
                self.v_pages[page, :length] = torch.randn(filled, dtype=self.dtype)

    def arguments(self, dtype: torch.dtype | None = None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """q, k_pages, v_pages, page_table, page_lengths; the first three in `dtype` when given."""
        dtype = dtype or self.dtype
        floating = (self.q.to(dtype), self.k_pages.to(dtype), self.v_pages.to(dtype))
        return (*floating, self.page_table, self.page_lengths)
