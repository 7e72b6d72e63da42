"""Attention over pages: online softmax over the valid keys of each slot's page list.

One program handles a tile of query rows of one head of one slot. Pages are read in place, in blocks of keys
that never cross a page; rows behind the valid length of a page are masked when loaded, keys and values both,
since a NaN there would survive a product with zero. Keys are of the dtype of the queries or int8
(`INT8`, see quantize.py): so is the query then, and its product with the mean key of a page is added to the
scores. Where the memory layout allows it, Hopper and later run `paged_attention_tma` instead.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .attention_step import LOG2_E, Scales, attention_step, finish, quantised_query
from .launch import OPTIONS, VARIES, VARIES_IN_ALIGNMENT, dense_rows, on_device
from .paged_attention_tma import paged_attention_tma, takes_tma


@triton.jit(do_not_specialize=VARIES, do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def paged_attention_kernel(
    q, k_pages, v_pages, q_scale, k_scale, offsets, v_scale, page_table, page_lengths, out, lse,
    queries, tiles, heads, entries, pages, page_tokens, head_dim, scale,
    q_slot, q_token, q_head, k_scale_page,
    k_page_stride, k_token_stride, k_head_stride,
    v_page_stride, v_token_stride, v_head_stride,
    INT8: tl.constexpr, FP8: tl.constexpr, LSE: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    tile, head, slot = item % tiles, item // tiles % heads, item // tiles // heads
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, BLOCK_D)
    keys = tl.arange(0, BLOCK_N)
    row_mask, dim_mask = rows < queries, dims < head_dim
    query = tl.load(
        q + slot * q_slot + head * q_head + rows[:, None] * q_token + dims[None, :],
        row_mask[:, None] & dim_mask[None, :],
        other=0,
    )
    if INT8:
        row_scale = tl.load(q_scale + (slot * queries + rows) * heads + head, row_mask, other=0)
    high = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for entry in range(entries):
        length = tl.load(page_lengths + slot * entries + entry)
        page = tl.load(page_table + slot * entries + entry).to(tl.int64)
        tl.device_assert((length >= 0) & (length <= page_tokens), "page_lengths out of range")
        tl.device_assert((length == 0) | ((page >= 0) & (page < pages)), "page_table out of range")
        page = tl.where(length > 0, page, 0)
        k_base = k_pages + page * k_page_stride + head * k_head_stride
        v_base = v_pages + page * v_page_stride + head * v_head_stride
        value_scale = 1.0
        if FP8:
            value_scale = tl.load(v_scale + page * heads + head)
        if INT8:
            offset = tl.load(
                offsets + ((slot * entries + entry) * heads + head) * queries + rows, row_mask, other=0
            )
        for start in range(0, length, BLOCK_N):
            key = start + keys
            valid = key < length
            token = key.to(tl.int64)
            k = tl.load(
                k_base + token[None, :] * k_token_stride + dims[:, None],
                valid[None, :] & dim_mask[:, None],
                other=0,
            )
            if INT8:
                factor = tl.load(k_scale + page * k_scale_page + token * heads + head, valid, other=0)
                product = tl.dot(query, k, out_dtype=tl.int32).to(tl.float32)
                scores = product * row_scale[:, None] * factor[None, :] + offset[:, None]
            else:
                scores = tl.dot(query, k, input_precision=PRECISION) * scale
            # A block holds at least one valid key, so the running maximum is finite from here on.
            scores = tl.where(valid[None, :], scores, float("-inf"))
            v = tl.load(
                v_base + token[:, None] * v_token_stride + dims[None, :],
                valid[:, None] & dim_mask[None, :],
                other=0.0,
            )
            high, total, acc = attention_step(scores, v, value_scale, high, total, acc, FP8, PRECISION)
    place = (slot * queries + rows) * heads + head
    acc, natural = finish(high, total, acc)
    tl.store(out + place[:, None] * head_dim + dims[None, :], acc, row_mask[:, None] & dim_mask[None, :])
    if LSE:
        tl.store(lse + place, natural, row_mask)


def tile_shape(
    queries: int, page_tokens: int, head_dim: int, dtype: torch.dtype, hopper: bool
) -> tuple[int, int, int, int]:
    """Query rows, keys and head elements of a tile, and warps: what compiles without a register spill.

    Hopper's matrix instructions read their operands from shared memory, which leaves registers for the larger
    tile. Keys of a block do not cross a page, so a block larger than a page would be mostly masked.
    """
    block_d = max(16, triton.next_power_of_2(head_dim))
    large = hopper and block_d * dtype.itemsize <= 256
    rows, keys = (128, 64) if large else (64, 32)
    block_m = min(rows, max(16, triton.next_power_of_2(queries)))
    block_n = min(keys, max(16, triton.next_power_of_2(page_tokens)))
    return block_m, block_n, block_d, 8 if block_m == 128 else 4


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    scales: Scales | None = None,
) -> Tensor:
    """Attention of q [s, tq, h, d] to the pages [p, n, h, d] that page_table [s, m] lists.

    With `scales`, keys are int8, and values are float8 where they have one.
    """
    return _launch(q, k_pages, v_pages, page_table, page_lengths, scale, None, scales)


def paged_attention_lse(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    scales: Scales | None = None,
) -> tuple[Tensor, Tensor]:
    """The same, with the log-sum-exp [s, tq, h] of the scores."""
    lse = q.new_empty(q.shape[:3], dtype=torch.float32)
    return _launch(q, k_pages, v_pages, page_table, page_lengths, scale, lse, scales), lse


def _launch(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    lse: Tensor | None,
    scales: Scales | None,
) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    q, page_table, page_lengths = dense_rows(q), page_table.contiguous(), page_lengths.contiguous()
    capability = torch.cuda.get_device_capability(q.device)[0] if q.is_cuda else 0
    if capability >= 9 and takes_tma(q, k_pages, v_pages):
        paged_attention_tma(q, k_pages, v_pages, page_table, page_lengths, scale, out, lse, scales)
        return out
    k_pages, v_pages = dense_rows(k_pages), dense_rows(v_pages)
    slots, queries, heads, head_dim = q.shape
    block_m, block_n, block_d, num_warps = tile_shape(
        queries, k_pages.shape[1], head_dim, q.dtype, capability == 9
    )
    if scales:
        block_n, block_d = max(block_n, 32), max(block_d, 32)  # the depth that integer products want
    row_scale = k_scale = offsets = q
    v_scale = None if scales is None else scales.values
    if scales:
        q, row_scale, k_scale, offsets = quantised_query(q, page_table, page_lengths, scales, scale * LOG2_E)
    tiles = triton.cdiv(queries, block_m)
    with on_device(q):
        paged_attention_kernel[(slots * heads * tiles,)](
            q, k_pages, v_pages, row_scale, k_scale, offsets, q if v_scale is None else v_scale.contiguous(),
            page_table, page_lengths, out,
            out if lse is None else lse,
            queries, tiles, heads, page_table.shape[1], k_pages.shape[0], k_pages.shape[1], head_dim,
            scale * LOG2_E,
            *q.stride()[:3], k_scale.stride(0), *k_pages.stride()[:3], *v_pages.stride()[:3],
            INT8=scales is not None, FP8=v_scale is not None, LSE=lse is not None,
            PRECISION="ieee" if out.dtype == torch.float32 else "tf32",
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_D=block_d,
            num_warps=num_warps, num_stages=2, **OPTIONS,
        )  # fmt: skip
    return out
