"""Quantisation of rows to int8: plainly, behind GELU, behind a modulated layer norm, and of pages of keys;
of pages of values to float8.

scale = largest magnitude / 127, data = the nearest integers; one program a row, the row in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import OPTIONS, VARIES_IN_ALIGNMENT, dense_rows, on_device, warps
from .norm import layer_norm_modulate_row
from .pointwise import gelu_value


@triton.jit
def quantized(row, mask, high):
    """Integers of a row whose largest magnitude is `high`, and its scale."""
    kept = (high >= 7.888609052210118e-31) | (high != high)  # 2^-100: below it the reciprocal overflows
    scale = tl.where(kept, tl.div_rn(high, 127.0), 0.0)
    factor = tl.where(kept, tl.div_rn(127.0, tl.where(kept, high, 1.0)), 0.0)
    # Adding 1.5 * 2^23 rounds to the nearest integer, ties to even. NaN would convert to anything.
    scaled = row * factor
    scaled = tl.where(mask & (scaled == scaled), scaled, 0.0)
    return ((scaled + 12582912.0) - 12582912.0).to(tl.int8), scale


@triton.jit
def _largest(row):
    """Largest magnitude, or NaN where the row holds a number that is not finite."""
    return tl.max(tl.abs(row)) + tl.sum(row * 0.0)


@triton.jit
def quantize_tokens_kernel(x, data, scale, dim, x_row, GELU: tl.constexpr, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < dim
    row = tl.load(x + item * x_row + columns, mask, other=0).to(tl.float32)
    if GELU:
        row = gelu_value(row)
    integers, row_scale = quantized(row, mask, _largest(row))
    tl.store(data + item * dim + columns, integers, mask)
    tl.store(scale + item, row_scale)


@triton.jit
def layer_norm_modulate_quantize_kernel(
    x, shift, scale, data, token_scale,
    tokens, tokens_per_frame, dim, eps,
    x_slot, x_token, shift_slot, shift_frame, scale_slot, scale_frame,
    BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < dim
    row = layer_norm_modulate_row(
        x, shift, scale, item, tokens, tokens_per_frame, dim, eps,
        x_slot, x_token, shift_slot, shift_frame, scale_slot, scale_frame, columns, mask,
    )  # fmt: skip
    row = tl.where(mask, row, 0.0)
    integers, row_scale = quantized(row, mask, _largest(row))
    tl.store(data + item * dim + columns, integers, mask)
    tl.store(token_scale + item, row_scale)


@triton.jit(do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def quantize_key_pages_kernel(
    k_pages, page_ids, page_lengths, data, scale, mean,
    page_tokens, pages, heads, head_dim,
    k_page, k_token, k_head, d_page, d_token, d_head, scale_page, mean_page,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    entry, head = item // heads, item % heads
    page, length = tl.load(page_ids + entry).to(tl.int64), tl.load(page_lengths + entry)
    tl.device_assert((page >= -1) & (page < pages), "page_ids out of range")
    tl.device_assert((length >= 0) & (length <= page_tokens), "page_lengths out of range")
    tokens = tl.where(page >= 0, page_tokens, 0)
    length = tl.where(page >= 0, length, 0)
    dims, rows = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    dim_mask = dims < head_dim
    keys = k_pages + page * k_page + head * k_head
    total = tl.zeros((BLOCK_D,), tl.float32)
    for start in range(0, length, BLOCK_N):
        token = (start + rows).to(tl.int64)
        mask = (token < length)[:, None] & dim_mask[None, :]
        block = tl.load(keys + token[:, None] * k_token + dims[None, :], mask, other=0)
        total += tl.sum(block.to(tl.float32), 0)
    centre = total / tl.maximum(length, 1)
    kept = dims < tl.where(page >= 0, head_dim, 0)
    tl.store(mean + page * mean_page + head * head_dim + dims, centre, kept)
    for start in range(0, tokens, BLOCK_N):
        token = (start + rows).to(tl.int64)
        inside = token < page_tokens
        mask = (token < length)[:, None] & dim_mask[None, :]
        block = tl.load(keys + token[:, None] * k_token + dims[None, :], mask, other=0)
        block = tl.where(mask, block.to(tl.float32) - centre[None, :], 0.0)
        high = tl.max(tl.abs(block), 1) + tl.sum(block * 0.0, 1)
        integers, row_scale = quantized(block, mask, high[:, None])
        to = data + page * d_page + token[:, None] * d_token + head * d_head + dims[None, :]
        tl.store(to, integers, inside[:, None] & dim_mask[None, :])
        tl.store(scale + page * scale_page + token * heads + head, tl.sum(row_scale, 1), inside)


@triton.jit(do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def quantize_value_pages_kernel(
    v_pages, page_ids, page_lengths, data, scale,
    page_tokens, pages, heads, head_dim,
    v_page, v_token, v_head, d_page, d_token, d_head,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    entry, head = item // heads, item % heads
    page, length = tl.load(page_ids + entry).to(tl.int64), tl.load(page_lengths + entry)
    tl.device_assert((page >= -1) & (page < pages), "page_ids out of range")
    tl.device_assert((length >= 0) & (length <= page_tokens), "page_lengths out of range")
    tokens = tl.where(page >= 0, page_tokens, 0)
    length = tl.where(page >= 0, length, 0)
    dims, rows = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_N)
    dim_mask = dims < head_dim
    values = v_pages + page * v_page + head * v_head
    highest = tl.zeros((BLOCK_N,), tl.float32)
    faulty = tl.zeros((BLOCK_N,), tl.float32)  # NaN for good, which a device's maximum would drop
    for start in range(0, length, BLOCK_N):
        token = (start + rows).to(tl.int64)
        mask = (token < length)[:, None] & dim_mask[None, :]
        block = tl.load(values + token[:, None] * v_token + dims[None, :], mask, other=0).to(tl.float32)
        highest = tl.maximum(highest, tl.max(tl.abs(block), 1))
        faulty += tl.sum(block * 0.0, 1)
    high = tl.max(highest) + tl.sum(faulty)
    kept = (high >= 7.888609052210118e-31) | (high != high)  # 2^-100, as for int8
    factor = tl.where(kept, tl.div_rn(448.0, tl.where(kept, high, 1.0)), 0.0)
    tl.store(scale + page * heads + head, tl.where(kept, tl.div_rn(high, 448.0), 0.0), page >= 0)
    for start in range(0, tokens, BLOCK_N):
        token = (start + rows).to(tl.int64)
        mask = (token < length)[:, None] & dim_mask[None, :]
        block = tl.load(values + token[:, None] * v_token + dims[None, :], mask, other=0).to(tl.float32)
        scaled = block * factor
        scaled = tl.where(scaled == scaled, scaled, 0.0)
        to = data + page * d_page + token[:, None] * d_token + head * d_head + dims[None, :]
        tl.store(to, scaled.to(data.dtype.element_ty), (token < page_tokens)[:, None] & dim_mask[None, :])


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    """x [..., K] to int8 [..., K] and the scale [...] of each row."""
    data = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
    if data.numel() == 0:
        return data, scale.zero_()
    rows = dense_rows(x.reshape(-1, x.shape[-1]))
    block = triton.next_power_of_2(rows.shape[1])
    with on_device(x):
        quantize_tokens_kernel[(rows.shape[0],)](
            rows, data, scale, rows.shape[1], rows.stride(0),
            GELU=gelu, BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return data, scale


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """x [s, t, D] normed, scaled and shifted by the [s, f, D] of each token's frame, to int8."""
    data = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    token_scale = x.new_empty(x.shape[:-1], dtype=torch.float32)
    if data.numel() == 0:
        return data, token_scale.zero_()
    x, shift, scale = dense_rows(x), dense_rows(shift), dense_rows(scale)
    slots, tokens, dim = x.shape
    block = triton.next_power_of_2(dim)
    with on_device(x):
        layer_norm_modulate_quantize_kernel[(slots * tokens,)](
            x, shift, scale, data, token_scale,
            tokens, tokens // shift.shape[1], dim, eps,
            x.stride(0), x.stride(1), shift.stride(0), shift.stride(1), scale.stride(0), scale.stride(1),
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return data, token_scale


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    """Pages [p, n, h, d] to int8 without their mean [p, h, d], a scale [p, n, h] for each token and head."""
    pages, page_tokens, heads, head_dim = k_pages.shape
    if page_ids.shape[0] * heads * head_dim == 0:
        return
    k_pages = dense_rows(k_pages)
    with on_device(k_pages):
        quantize_key_pages_kernel[(page_ids.shape[0] * heads,)](
            k_pages, page_ids.contiguous(), page_lengths.contiguous(), data, scale, mean,
            page_tokens, pages, heads, head_dim,
            *k_pages.stride()[:3], *data.stride()[:3], scale.stride(0), mean.stride(0),
            BLOCK_N=64, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=4, **OPTIONS,
        )  # fmt: skip


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    """Pages [p, n, h, d] to float8 with a scale [p, h] for each page and head."""
    pages, page_tokens, heads, head_dim = v_pages.shape
    if page_ids.shape[0] * heads * head_dim == 0:
        return
    v_pages = dense_rows(v_pages)
    with on_device(v_pages):
        quantize_value_pages_kernel[(page_ids.shape[0] * heads,)](
            v_pages, page_ids.contiguous(), page_lengths.contiguous(), data, scale,
            page_tokens, pages, heads, head_dim,
            *v_pages.stride()[:3], *data.stride()[:3],
            BLOCK_N=64, BLOCK_D=triton.next_power_of_2(head_dim), num_warps=4, **OPTIONS,
        )  # fmt: skip
