"""Linear layer in int8: integer products, then scales, bias, gate and residual on the way out.

Both operands have their inputs along the last dimension, as Hopper's integer instructions want them. Tiles
are visited in groups of rows, so that a group's weights are read from the second-level cache. On Hopper large
tiles come through tensor descriptors (TMA), which read zeros past the end.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from .launch import OPTIONS, VARIES, dense_rows, on_device


@triton.jit(do_not_specialize=VARIES)
def int8_linear_kernel(
    tokens, token_scale, weight, channel_scale, bias, residual, gate, out,
    rows, inputs, outputs, weight_row, tokens_per_slot, tokens_per_frame,
    residual_slot, residual_token, gate_slot, gate_frame,
    BIAS: tl.constexpr, RESIDUAL: tl.constexpr, GATE: tl.constexpr, WHOLE: tl.constexpr, TMA: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0)
    row_tiles, column_tiles = tl.cdiv(rows, BLOCK_M), tl.cdiv(outputs, BLOCK_N)
    group = item // (GROUP * column_tiles)
    height = min(row_tiles - group * GROUP, GROUP)
    row_tile = group * GROUP + item % (GROUP * column_tiles) % height
    column_tile = item % (GROUP * column_tiles) // height
    row = row_tile * BLOCK_M + tl.arange(0, BLOCK_M)
    column = column_tile * BLOCK_N + tl.arange(0, BLOCK_N)
    row_mask, column_mask = row < rows, column < outputs
    if not TMA:
        # Rows past the end read the last one; their results are not stored.
        left = tokens + tl.minimum(row, rows - 1).to(tl.int64)[:, None] * inputs
        right = weight + tl.minimum(column, outputs - 1).to(tl.int64)[None, :] * weight_row
        depth = tl.arange(0, BLOCK_K)
    sums = tl.zeros((BLOCK_M, BLOCK_N), tl.int32)
    for start in range(0, inputs, BLOCK_K):
        if TMA:
            a = tokens.load([row_tile * BLOCK_M, start])
            b = weight.load([column_tile * BLOCK_N, start]).T
        elif WHOLE:
            at = start + depth
            a, b = tl.load(left + at[None, :]), tl.load(right + at[:, None])
        else:
            at = start + depth
            a = tl.load(left + at[None, :], (at < inputs)[None, :], other=0)
            b = tl.load(right + at[:, None], (at < inputs)[:, None], other=0)
        # Stated since the default of older Triton versions is float32.
        sums = tl.dot(a, b, sums, out_dtype=tl.int32)
    scale = tl.load(token_scale + row, row_mask, other=0)[:, None]
    value = sums.to(tl.float32) * scale * tl.load(channel_scale + column, column_mask, other=0)[None, :]
    if BIAS:
        value += tl.load(bias + column, column_mask, other=0).to(tl.float32)[None, :]
    row = row.to(tl.int64)
    mask = row_mask[:, None] & column_mask[None, :]
    slot, token = row // tokens_per_slot, row % tokens_per_slot
    if GATE:
        gate_row = gate + slot * gate_slot + token // tokens_per_frame * gate_frame
        value *= tl.load(gate_row[:, None] + column[None, :], mask, other=0).to(tl.float32)
    if RESIDUAL:
        residual_row = residual + slot * residual_slot + token * residual_token
        value += tl.load(residual_row[:, None] + column[None, :], mask, other=0).to(tl.float32)
    tl.store(out + row[:, None] * outputs + column[None, :], value, mask)


LARGE, SMALL = (128, 128, 128, 8, 4), (64, 64, 64, 4, 3)


def tile_shape(rows: int, outputs: int, hopper: bool) -> tuple[int, int, int, int, int]:
    """Rows, columns and depth of a tile, warps and stages: what compiles without a register spill."""
    return LARGE if hopper and rows > 64 and outputs > 128 else SMALL


def takes_tma(tokens: Tensor, weight: Tensor, tile: tuple[int, ...]) -> bool:
    """Whether tokens [rows, K] and weight can be read through descriptors: rows begin at 16 bytes."""
    return tile == LARGE and all(
        part.stride(0) % 16 == 0 and part.data_ptr() % 16 == 0 for part in (tokens, weight)
    )


def int8_linear(
    tokens: Tensor,
    token_scale: Tensor,
    weight: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """tokens int8 [..., K] times weight int8 [N, K] (padded), with scales, bias, gate and residual."""
    outputs, inputs = channel_scale.shape[0], tokens.shape[-1]
    out = tokens.new_empty((*tokens.shape[:-1], outputs), dtype=dtype)
    if out.numel() == 0:
        return out
    rows = out.numel() // outputs
    tokens_per_slot, tokens_per_frame = rows, 1
    residual_strides, gate_strides = (0, 0), (0, 0)
    if residual is not None:
        residual = dense_rows(residual)
        if gate is None:
            residual = residual.reshape(rows, outputs)
            residual_strides = (0, residual.stride(0))
        else:
            gate = dense_rows(gate)
            tokens_per_slot, tokens_per_frame = residual.shape[1], residual.shape[1] // gate.shape[1]
            residual_strides = residual.stride(0), residual.stride(1)
            gate_strides = gate.stride(0), gate.stride(1)
    hopper = tokens.is_cuda and torch.cuda.get_device_capability(tokens.device)[0] == 9
    tile = tile_shape(rows, outputs, hopper)
    block_m, block_n, block_k, num_warps, stages = tile
    left, right = tokens.contiguous().view(rows, inputs), weight.contiguous()
    tma = takes_tma(left, right, tile)
    with on_device(tokens):
        int8_linear_kernel[(triton.cdiv(rows, block_m) * triton.cdiv(outputs, block_n),)](
            TensorDescriptor.from_tensor(left, [block_m, block_k]) if tma else left,
            token_scale.contiguous(),
            TensorDescriptor.from_tensor(right, [block_n, block_k]) if tma else right,
            channel_scale.contiguous(),
            out if bias is None else bias.contiguous(), out if residual is None else residual,
            out if gate is None else gate, out,
            rows, inputs, outputs, weight.shape[1], tokens_per_slot, tokens_per_frame,
            *residual_strides, *gate_strides,
            BIAS=bias is not None, RESIDUAL=residual is not None, GATE=gate is not None,
            WHOLE=inputs % block_k == 0, TMA=tma,
            BLOCK_M=block_m, BLOCK_N=block_n, BLOCK_K=block_k, GROUP=8,
            num_warps=num_warps, num_stages=stages, **OPTIONS,
        )  # fmt: skip
    return out
