"""Inputs of the operations that run half a transformer layer."""

from __future__ import annotations

from typing import Any

import torch
from support.ops import PageWrite
from torch import Tensor

from wavecore.ops import OutputWeights, QueryWeights

EPS = 1e-6
SLOTS, FRAMES, TOKENS, HEADS, HEAD_DIM, FFN, TEXT = 3, 2, 26, 4, 24, 160, 7
DIM = HEADS * HEAD_DIM


def weights(*shapes: tuple[int, ...], dtype: torch.dtype) -> list[Tensor]:
    return [torch.randn(shape, dtype=dtype) * shape[-1] ** -0.5 for shape in shapes]


def query_arguments(dtype: torch.dtype = torch.float32, unroped: bool = True) -> dict[str, Any]:
    write = PageWrite(SLOTS, TOKENS, HEADS, HEAD_DIM, dtype=dtype, unroped=unroped, peer=False).arguments
    taken = ("rope", "k_pages", "v_pages", "page_ids", "eps", "unroped_pages", "unroped_ids")
    return {
        "x": torch.randn(SLOTS, TOKENS, DIM, dtype=dtype),
        "modulation": torch.randn(SLOTS, FRAMES, 6, DIM, dtype=dtype) * 0.3,
        "weights": QueryWeights(*weights(*((DIM, DIM), (DIM,)) * 3, (DIM,), (DIM,), dtype=dtype)),
        **{name: write[name] for name in taken},
    }


def output_arguments(dtype: torch.dtype = torch.float32, groups: int = SLOTS) -> dict[str, Any]:
    layer = ((DIM, DIM), (DIM,))
    shapes = (*layer, (DIM,), (DIM,), *layer, (DIM,), *layer, (FFN, DIM), (FFN,), (DIM, FFN), (DIM,))
    return {
        "attended": torch.randn(SLOTS, TOKENS, HEADS, HEAD_DIM, dtype=dtype),
        "x": torch.randn(SLOTS, TOKENS, DIM, dtype=dtype),
        "modulation": torch.randn(SLOTS, FRAMES, 6, DIM, dtype=dtype) * 0.3,
        "weights": OutputWeights(*weights(*shapes, dtype=dtype)),
        "keys": torch.randn(groups, TEXT, HEADS, HEAD_DIM, dtype=dtype),
        "values": torch.randn(groups, TEXT, HEADS, HEAD_DIM, dtype=dtype),
        "eps": EPS,
    }
