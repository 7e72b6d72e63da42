"""Keys that the pages of a cache hold in int8.

Keys are written, or turned, as numbers of the model's dtype into staging pages that all layers share, and are
quantised from there once. What ranks send each other is then half as large in two-byte models.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore import ops


def quantized_keys(memory: Tensor, staging: Tensor) -> ops.QuantizedKeyPages:
    """Pages in the memory of a layer, uint8 [p, bytes], whose keys come from staging pages [p, n, h, d]."""
    return ops.key_pages_in(memory, *staging.shape[1:])


def quantize_keys(memory: Tensor, staging: Tensor, ids: Tensor) -> None:
    """Quantise the keys in staging pages to the pages of the same ids, int32 of any shape; -1 is skipped."""
    ids = ids.flatten()
    lengths = torch.full_like(ids, staging.shape[1])
    ops.quantize_key_pages(staging, ids, lengths, quantized_keys(memory, staging))


def turn_keys(
    unroped: Tensor, source: Tensor, k_pages: Tensor, target: Tensor, rope: Tensor, staging: Tensor | None
) -> None:
    """`wavecore.ops.rope_shift` to pages of keys as a pool holds them, with its staging pages."""
    ops.rope_shift(unroped, source, k_pages if staging is None else staging, target, rope)
    if staging is not None:
        quantize_keys(k_pages, staging, target)
