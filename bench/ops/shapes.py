"""Shapes of the models, and tensors of them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Shape:
    """Slots, tokens and latent frames of a slot, heads and their size, pages of the context, dtype."""

    slots: int
    frames: int
    page_tokens: int
    heads: int
    head_dim: int
    context: int
    dtype: torch.dtype = torch.float32

    @property
    def tokens(self) -> int:
        return self.frames * self.page_tokens

    @property
    def dim(self) -> int:
        return self.heads * self.head_dim

    def rows(self, *middle: int) -> Tensor:
        return torch.randn(self.slots, *(middle or (self.tokens,)), self.dim, dtype=self.dtype)

    def pages(self, count: int) -> Tensor:
        return torch.randn(count, self.page_tokens, self.heads, self.head_dim, dtype=self.dtype)


SHAPES = {
    "sprites": Shape(5, 3, 16, 4, 48, 12),
    "sprites, long context": Shape(5, 3, 16, 4, 48, 24),
    "wan-1.3b, one frame": Shape(1, 1, 1560, 12, 128, 1),
    "wan-1.3b, one frame, bfloat16": Shape(1, 1, 1560, 12, 128, 1, torch.bfloat16),
    "wan-1.3b, three heads, four frames of context": Shape(1, 1, 1560, 3, 128, 4),
    "wan-1.3b, one head, eight chunks of context": Shape(1, 3, 1560, 1, 128, 24),
    "wan-1.3b, a chunk, bfloat16": Shape(1, 3, 1560, 12, 128, 3, torch.bfloat16),
    "wan-14b, a chunk, bfloat16": Shape(1, 3, 1560, 40, 128, 3, torch.bfloat16),
}
# Heads are computed alike and apart: some of them tell how fast attention is, where all would take minutes.
ATTENTION_SHAPES = [name for name in SHAPES if "a chunk" not in name]
NORM_SHAPES = [name for name in SHAPES if "context" not in name]
