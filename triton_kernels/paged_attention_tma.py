"""Attention over pages for Hopper and later: keys and values come through tensor descriptors (TMA).

The grid is persistent: as many programs as multiprocessors, which step through a list of (slot, head, query
tile). The slot of the longest context comes first, so that no long item is left for the end. Whole blocks of
keys need no mask; the ragged end of a page is a block of its own, masked. Warps are not specialised: Triton
3.6 and 3.9 do not compile a loop over pages from a table for groups of warps that share 128 queries.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .attention_step import LOG2_E, Scales, attention_step, finish, quantised_query
from .launch import OPTIONS, VARIES, VARIES_IN_ALIGNMENT, on_device

HEAD_DIMS = (64, 128)
BLOCK_M, BLOCK_N, WARPS = 128, 64, 8  # what compiles without a register spill


@triton.jit(do_not_specialize=VARIES, do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def paged_attention_tma_kernel(
    q, k_rows, v_rows, q_scale, k_scale, offsets, v_scale, page_table, page_lengths, order, out, lse,
    queries, tiles, heads, entries, pages, page_tokens, items, scale,
    q_slot, q_token, q_head, k_page_rows, v_page_rows, k_scale_page,
    INT8: tl.constexpr, FP8: tl.constexpr, LSE: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, HEAD_DIM: tl.constexpr,
):  # fmt: skip
    dims = tl.arange(0, HEAD_DIM)
    keys = tl.arange(0, BLOCK_N)
    for item in range(tl.program_id(0), items, tl.num_programs(0)):
        tile, head = item % tiles, item // tiles % heads
        slot = tl.load(order + item // tiles // heads).to(tl.int64)
        rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
        row_mask = rows < queries
        # A query in int8 is dense; the wider product would spill registers on Triton 3.6.
        head_offset = head * HEAD_DIM if INT8 else head.to(tl.int64) * q_head
        query_rows = q + slot * q_slot + head_offset + rows.to(tl.int64)[:, None] * q_token
        query = tl.load(query_rows + dims[None, :], row_mask[:, None], other=0)
        if INT8:
            row_scale = tl.load(q_scale + (slot * queries + rows) * heads + head, row_mask, other=0)
        high = tl.full((BLOCK_M,), float("-inf"), tl.float32)
        total = tl.zeros((BLOCK_M,), tl.float32)
        acc = tl.zeros((BLOCK_M, HEAD_DIM), tl.float32)
        for entry in range(entries):
            length = tl.load(page_lengths + slot * entries + entry)
            page = tl.load(page_table + slot * entries + entry)
            tl.device_assert((length >= 0) & (length <= page_tokens), "page_lengths out of range")
            tl.device_assert((length == 0) | ((page >= 0) & (page < pages)), "page_table out of range")
            page = tl.where(length > 0, page, 0)
            k_first, v_first, column = page * k_page_rows, page * v_page_rows, head * HEAD_DIM
            scales = k_scale + page.to(tl.int64) * k_scale_page + head
            if INT8:
                offset_row = offsets + ((slot * entries + entry) * heads + head) * queries
                offset = tl.load(offset_row + rows, row_mask, other=0)
            value_scale = 1.0
            if FP8:
                value_scale = tl.load(v_scale + page.to(tl.int64) * heads + head)
            whole = length // BLOCK_N * BLOCK_N
            for start in range(0, whole, BLOCK_N):
                k = k_rows.load([k_first + start, column])
                if INT8:
                    factor = tl.load(scales + (start + keys) * heads)
                    product = tl.dot(query, k.T, out_dtype=tl.int32).to(tl.float32)
                    scores = product * row_scale[:, None] * factor[None, :] + offset[:, None]
                else:
                    scores = tl.dot(query, k.T) * scale
                v = v_rows.load([v_first + start, column])
                high, total, acc = attention_step(scores, v, value_scale, high, total, acc, FP8, "tf32")
            if whole < length:
                valid = whole + keys < length
                k = k_rows.load([k_first + whole, column])
                if INT8:
                    factor = tl.load(scales + (whole + keys) * heads, valid, other=0)
                    product = tl.dot(query, k.T, out_dtype=tl.int32).to(tl.float32)
                    scores = product * row_scale[:, None] * factor[None, :] + offset[:, None]
                else:
                    scores = tl.dot(query, k.T) * scale
                scores = tl.where(valid[None, :], scores, float("-inf"))
                v = v_rows.load([v_first + whole, column])
                v = tl.where(valid[:, None], v, tl.zeros_like(v))
                high, total, acc = attention_step(scores, v, value_scale, high, total, acc, FP8, "tf32")
        place = (slot * queries + rows) * heads + head
        acc, natural = finish(high, total, acc)
        tl.store(out + place[:, None] * HEAD_DIM + dims[None, :], acc, row_mask[:, None])
        if LSE:
            tl.store(lse + place, natural, row_mask)


def pipeline(int8: bool, float8: bool) -> tuple[int, int]:
    """Keys of a block, and blocks in flight: what compiles without a register spill on Triton 3.6 too.

    The scales of int8 keys leave room for two blocks; products with float8 values, which are not summed in
    place, for smaller ones.
    """
    if float8:
        return BLOCK_N // 2, 3
    return BLOCK_N, 2 if int8 else 3


def takes_tma(q: Tensor, k_pages: Tensor, v_pages: Tensor) -> bool:
    """Whether queries are two-byte, and pages lie in a matrix of tokens and have room for a block."""
    _, queries, _, head_dim = q.shape
    return (
        q.element_size() == 2
        and head_dim in HEAD_DIMS
        and queries >= BLOCK_M // 2
        and k_pages.shape[0] > 0
        and k_pages.shape[1] >= BLOCK_N
        and all(
            pages.stride(3) == 1
            and pages.stride(2) == head_dim
            and pages.stride(1) > 0
            and pages.stride(0) % pages.stride(1) == 0
            and pages.shape[0] * page_rows(pages) < 2**31
            and pages.stride(1) * pages.element_size() % 16 == 0
            and pages.data_ptr() % 16 == 0
            for pages in (k_pages, v_pages)
        )
    )


def page_rows(pages: Tensor) -> int:
    """Tokens from one page to the next: more than those of a page where something lies between them."""
    return pages.stride(0) // pages.stride(1)


def paged_attention_tma(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    out: Tensor,
    lse: Tensor | None,
    scales: Scales | None,
) -> None:
    """Fill out [s, tq, h, d] (and lse [s, tq, h]); `takes_tma` has to hold."""
    slots, queries, heads, head_dim = q.shape
    tiles = triton.cdiv(queries, BLOCK_M)
    items = slots * heads * tiles
    v_scale = None if scales is None else scales.values
    block_n, num_stages = pipeline(scales is not None, v_scale is not None)
    k_rows, v_rows = (
        TensorDescriptor(
            pages,
            [(pages.shape[0] - 1) * page_rows(pages) + pages.shape[1], heads * head_dim],
            [pages.stride(1), 1],
            [block_n, head_dim],
        )
        for pages in (k_pages, v_pages)
    )
    row_scale = k_scale = offsets = q
    if scales:
        q, row_scale, k_scale, offsets = quantised_query(q, page_table, page_lengths, scales, scale * LOG2_E)
    order = page_lengths.sum(1).argsort(descending=True).int()
    programs = items
    if q.is_cuda:
        programs = min(items, torch.cuda.get_device_properties(q.device).multi_processor_count)
    with on_device(q):
        paged_attention_tma_kernel[(programs,)](
            q, k_rows, v_rows, row_scale, k_scale, offsets, q if v_scale is None else v_scale.contiguous(),
            page_table, page_lengths, order, out,
            out if lse is None else lse,
            queries, tiles, heads, page_table.shape[1], k_pages.shape[0], k_pages.shape[1], items,
            scale * LOG2_E,
            *q.stride()[:3], page_rows(k_pages), page_rows(v_pages), k_scale.stride(0),
            INT8=scales is not None, FP8=v_scale is not None, LSE=lse is not None,
            BLOCK_M=BLOCK_M, BLOCK_N=block_n, HEAD_DIM=head_dim,
            num_warps=WARPS, num_stages=num_stages, **OPTIONS,
        )  # fmt: skip
