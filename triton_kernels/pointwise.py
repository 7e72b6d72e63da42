"""GELU, and the step from one noise level to the next."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launch import OPTIONS, dense_rows, on_device

BLOCK = 2048


@triton.jit
def gelu_value(x):
    """GELU by its tanh approximation, x / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3)."""
    twice = x * (1.5957691216057308 + 0.07135481282649 * x * x)
    e = tl.exp(-tl.abs(twice))  # of the negative magnitude, which cannot overflow
    return x * tl.where(twice < 0, e, 1.0) / (1.0 + e)


@triton.jit
def gelu_kernel(x, out, dim, blocks, x_row, BLOCK: tl.constexpr):
    item = tl.program_id(0).to(tl.int64)
    row, columns = item // blocks, item % blocks * BLOCK + tl.arange(0, BLOCK)
    mask = columns < dim
    value = tl.load(x + row * x_row + columns, mask, other=0).to(tl.float32)
    tl.store(out + row * dim + columns, gelu_value(value), mask)


@triton.jit
def renoise_step_kernel(
    x, velocity, noise, sigma, next_sigma, x0, noised,
    channels, frames, plane, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    item = tl.program_id(0).to(tl.int64)
    row, columns = item // blocks, item % blocks * BLOCK + tl.arange(0, BLOCK)
    level = row // (channels * frames) * frames + row % frames
    now, then = tl.load(sigma + level), tl.load(next_sigma + level)
    mask, at = columns < plane, row * plane + columns
    clean = tl.load(x + at, mask).to(tl.float32) - now * tl.load(velocity + at, mask).to(tl.float32)
    tl.store(x0 + at, clean, mask)
    tl.store(noised + at, (1 - then) * clean + then * tl.load(noise + at, mask).to(tl.float32), mask)


def gelu(x: Tensor) -> Tensor:
    """GELU of x [..., D], contiguous."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    if out.numel() == 0:
        return out
    rows = dense_rows(x.reshape(-1, x.shape[-1]))
    blocks = triton.cdiv(rows.shape[1], BLOCK)
    with on_device(x):
        gelu_kernel[(rows.shape[0] * blocks,)](
            rows, out, rows.shape[1], blocks, rows.stride(0), BLOCK=BLOCK, num_warps=4, **OPTIONS
        )
    return out


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """x0 = x - sigma v, then (1 - sigma') x0 + sigma' noise; x [s, c, f, h, w], sigma [s, f]."""
    x0 = torch.empty_like(x, memory_format=torch.contiguous_format)
    noised = torch.empty_like(x0)
    if x.numel() == 0:
        return x0, noised
    slots, channels, frames, height, width = x.shape
    blocks = triton.cdiv(height * width, BLOCK)
    with on_device(x):
        renoise_step_kernel[(slots * channels * frames * blocks,)](
            x.contiguous(), velocity.contiguous(), noise.contiguous(),
            sigma.contiguous(), next_sigma.contiguous(), x0, noised,
            channels, frames, height * width, blocks,
            BLOCK=BLOCK, num_warps=4, **OPTIONS,
        )  # fmt: skip
    return x0, noised
