"""What both attention kernels share: a step of the online softmax, its end, and the query in int8."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .quantize import quantize_tokens

LOG2_E = 1.4426950408889634


class Scales(NamedTuple):
    """Of quantised keys, and of values where they are float8.

    Attributes
    ----------
    keys : Tensor float32 [p, n, h]
        Scale of each int8 key; contiguous within a page.
    means : Tensor float32 [p, h, d]
        Mean key of each page.
    values : Tensor float32 [p, h], optional
        Scale of the float8 values of a page.
    """

    keys: Tensor
    means: Tensor
    values: Tensor | None = None


@triton.jit
def attention_step(scores, v, v_scale, high, total, acc, FP8: tl.constexpr, PRECISION: tl.constexpr):
    """Add a block of scores, in units of log 2, and its values, with their scale where they are float8."""
    highest = tl.maximum(high, tl.max(scores, 1))
    p = tl.exp2(scores - highest[:, None])
    decay = tl.exp2(high - highest)
    total = total * decay + tl.sum(p, 1)
    if FP8:
        # Weights up to 1 fill the range of the format, up to 448. Its products are summed with few bits on
        # Hopper, so those of a block are added in float32 (SageAttention 2, section 3.3).
        product = tl.dot((p * 448).to(v.dtype), v)
        acc = acc * decay[:, None] + product * (v_scale / 448)
    else:
        acc = tl.dot(p.to(v.dtype), v, acc * decay[:, None], input_precision=PRECISION)
    return highest, total, acc


@triton.jit
def finish(high, total, acc):
    """Weighted values (zero where there was no key), and the natural log-sum-exp of the scores."""
    empty = total == 0
    natural = (high + tl.log2(tl.where(empty, 1.0, total))) * 0.6931471805599453
    return acc / tl.where(empty, 1.0, total)[:, None], natural


def quantised_query(
    q: Tensor, page_table: Tensor, page_lengths: Tensor, scales: Scales, factor: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """What the kernels need for int8 scores, in units of log 2.

    Returns the query in int8 and the scale [s, tq, h] of its rows, the scale of the keys with pages made
    contiguous, and the product of the unrounded query with the mean key of each page of the context,
    [s, m, h, tq].
    """
    data, row_scale = quantize_tokens(q, False)
    pages = torch.where(page_lengths > 0, page_table, 0).long()
    offsets = torch.einsum("sqhd,smhd->smhq", q.float(), scales.means[pages]) * factor
    keys = scales.keys
    if keys.stride()[1:] != (keys.shape[2], 1):
        keys = keys.contiguous()
    return data, row_scale * factor, keys, offsets.contiguous()
