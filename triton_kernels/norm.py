"""Layer norm with modulation, gated residual and RMS norm: one program a row, the row in registers.

A row is read and written once, so these run at the speed of memory. Rows lie along the first axis of the
grid, which alone takes more than 65,535 programs.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import OPTIONS, dense_rows, on_device, warps


@triton.jit
def _modulation_row(base, slot, frame, slot_stride, frame_stride, columns, mask):
    pointer = base + slot * slot_stride + frame * frame_stride
    return tl.load(pointer + columns, mask, other=0).to(tl.float32)


@triton.jit
def layer_norm_modulate_row(
    x, shift, scale, item, tokens, tokens_per_frame, dim, eps,
    x_slot, x_token, shift_slot, shift_frame, scale_slot, scale_frame, columns, mask,
):  # fmt: skip
    """Row `item` of all slots, normed and modulated, in float32."""
    slot, token = item // tokens, item % tokens
    frame = token // tokens_per_frame
    row = tl.load(x + slot * x_slot + token * x_token + columns, mask, other=0).to(tl.float32)
    centred = tl.where(mask, row - tl.sum(row) / dim, 0)
    normed = centred * tl.rsqrt(tl.sum(centred * centred) / dim + eps)
    weight = 1 + _modulation_row(scale, slot, frame, scale_slot, scale_frame, columns, mask)
    bias = _modulation_row(shift, slot, frame, shift_slot, shift_frame, columns, mask)
    return normed * weight + bias


@triton.jit
def layer_norm_modulate_kernel(
    x, shift, scale, out,
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
    tl.store(out + item * dim + columns, row, mask)


@triton.jit
def gate_residual_kernel(
    x, y, gate, out,
    tokens, tokens_per_frame, dim,
    x_slot, x_token, y_slot, y_token, gate_slot, gate_frame,
    BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    slot, token = item // tokens, item % tokens
    columns = tl.arange(0, BLOCK)
    mask = columns < dim
    residual = tl.load(x + slot * x_slot + token * x_token + columns, mask, other=0).to(tl.float32)
    added = tl.load(y + slot * y_slot + token * y_token + columns, mask, other=0).to(tl.float32)
    factor = _modulation_row(gate, slot, token // tokens_per_frame, gate_slot, gate_frame, columns, mask)
    tl.store(out + item * dim + columns, residual + added * factor, mask)


@triton.jit
def rms_norm_kernel(x, weight, out, dim, eps, x_row, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    mask = columns < dim
    row = tl.load(x + item * x_row + columns, mask, other=0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(row * row) / dim + eps)
    scaled = row * factor * tl.load(weight + columns, mask, other=0).to(tl.float32)
    tl.store(out + item * dim + columns, scaled, mask)


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x [s, t, D] normed, scaled and shifted by the [s, f, D] of each token's frame."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x, shift, scale = dense_rows(x), dense_rows(shift), dense_rows(scale)
    slots, tokens, dim = x.shape
    block = triton.next_power_of_2(dim)
    with on_device(x):
        layer_norm_modulate_kernel[(slots * tokens,)](
            x, shift, scale, out,
            tokens, tokens // shift.shape[1], dim, eps,
            x.stride(0), x.stride(1), shift.stride(0), shift.stride(1), scale.stride(0), scale.stride(1),
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return out


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """x + y * gate for x and y [s, t, D], gate [s, f, D]."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    x, y, gate = dense_rows(x), dense_rows(y), dense_rows(gate)
    slots, tokens, dim = x.shape
    block = triton.next_power_of_2(dim)
    with on_device(x):
        gate_residual_kernel[(slots * tokens,)](
            x, y, gate, out,
            tokens, tokens // gate.shape[1], dim,
            x.stride(0), x.stride(1), y.stride(0), y.stride(1), gate.stride(0), gate.stride(1),
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """RMS norm of x [..., D] over its last dimension."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    rows = dense_rows(x.reshape(-1, x.shape[-1]))
    dim = rows.shape[1]
    block = triton.next_power_of_2(dim)
    with on_device(x):
        rms_norm_kernel[(rows.shape[0],)](
            rows, weight.contiguous(), out, dim, eps, rows.stride(0),
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return out
