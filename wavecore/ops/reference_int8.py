"""The operations on int8 in plain PyTorch: integers exactly as every backend makes them, the rest in float64.

The quotients are float32, as everywhere: which integer is nearest would otherwise differ where two are
equally near. What int8 costs in accuracy is measured against the same operation without it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.ops import checks, checks_int8
from wavecore.ops.reference import _per_token

LARGEST_FLOAT8 = 448.0  # of e4m3
SMALLEST_MAGNITUDE = 2.0**-100  # rows below it become zeros: the reciprocal of their scale would overflow


def quantize_rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 values [..., K] to int8 and the scale of each row."""
    if values.shape[-1] == 0:
        return values.to(torch.int8), values.new_zeros(values.shape[:-1])
    high = values.abs().amax(-1)
    kept = ~(high < SMALLEST_MAGNITUDE)  # NaN is kept
    scale = torch.where(kept, high / 127, 0.0)
    # Of two tensors: PyTorch divides a number by a tensor in two roundings.
    factor = torch.where(kept, torch.full_like(high, 127.0) / high, 0.0)
    data = (values * factor[..., None]).round().nan_to_num(0.0).clamp(-127, 127).to(torch.int8)
    return data, torch.where(values.isfinite().all(-1), scale, torch.nan)


def quantize_values(values: Tensor) -> tuple[Tensor, Tensor]:
    """Float32 values [n, h, d] of a page to float8 (e4m3) and one scale [h] for each head."""
    high = values.abs().amax((0, 2)) if values.numel() else values.new_zeros(values.shape[1])
    kept = ~(high < SMALLEST_MAGNITUDE)  # NaN is kept
    scale = torch.where(kept, high / LARGEST_FLOAT8, 0.0)
    factor = torch.where(kept, torch.full_like(high, LARGEST_FLOAT8) / high, 0.0)
    data = (values * factor[:, None]).nan_to_num(0.0).clamp(-LARGEST_FLOAT8, LARGEST_FLOAT8)
    finite = values.isfinite().all(2).all(0)
    return data.to(torch.float8_e4m3fn), torch.where(finite, scale, torch.nan)


def _gelu(x: Tensor) -> Tensor:
    wide = x.double()
    return 0.5 * wide * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (wide + 0.044715 * wide**3)))


def gelu(x: Tensor) -> Tensor:
    checks_int8.gelu(x)
    return _gelu(x).to(x.dtype)


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    checks_int8.renoise_step(x, velocity, noise, sigma, next_sigma)
    now, then = (level.double()[:, None, :, None, None] for level in (sigma, next_sigma))
    x0 = x.double() - now * velocity.double()
    return x0.to(x.dtype), ((1 - then) * x0 + then * noise.double()).to(x.dtype)


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    checks_int8.quantize_tokens(x)
    return quantize_rows((_gelu(x) if gelu else x).float())


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    checks_int8.layer_norm_modulate_quantize(x, shift, scale)
    tokens = x.shape[1]
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return quantize_rows((normed * (1 + _per_token(scale, tokens)) + _per_token(shift, tokens)).float())


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
    checks_int8.int8_linear(tokens, token_scale, weight, channel_scale, bias, residual, gate, dtype)
    used = weight[: channel_scale.shape[0], : tokens.shape[-1]]
    out = tokens.double() @ used.double().T  # exact: the sums are below 2^53
    out = out * token_scale.double()[..., None] * channel_scale.double()
    if bias is not None:
        out = out + bias.double()
    if residual is not None:
        out = residual.double() + (out if gate is None else out * _per_token(gate, residual.shape[1]))
    return out.to(dtype)


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    checks_int8.quantize_key_pages(k_pages, page_ids, page_lengths, data, scale, mean)
    checks.check_page_ids("page_ids", page_ids, k_pages.shape[0])
    checks_int8.check_lengths(page_lengths, k_pages.shape[1])
    for page, length in zip(page_ids.tolist(), page_lengths.tolist(), strict=True):
        if page < 0:
            continue
        keys = k_pages[page, :length].double()
        mean[page] = keys.mean(0).float() if length else 0.0
        data[page, length:], scale[page, length:] = 0, 0.0
        data[page, :length], scale[page, :length] = quantize_rows(keys.float() - mean[page])


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    checks_int8.quantize_value_pages(v_pages, page_ids, page_lengths, data, scale)
    checks.check_page_ids("page_ids", page_ids, v_pages.shape[0])
    checks_int8.check_lengths(page_lengths, v_pages.shape[1])
    for page, length in zip(page_ids.tolist(), page_lengths.tolist(), strict=True):
        if page >= 0:
            data[page, length:] = 0
            data[page, :length], scale[page] = quantize_values(v_pages[page, :length].float())


def paged_attention_int8(
    q: Tensor,
    k_data: Tensor,
    k_scale: Tensor,
    k_mean: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    v_scale: Tensor | None = None,
) -> Tensor:
    return paged_attention_int8_lse(
        q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths, scale, v_scale
    )[0]


def paged_attention_int8_lse(
    q: Tensor,
    k_data: Tensor,
    k_scale: Tensor,
    k_mean: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    v_scale: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    checks_int8.paged_attention_int8(q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths, v_scale)
    checks.check_context(page_table, page_lengths, v_pages.shape[0], v_pages.shape[1])
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    q_data, q_scale = quantize_rows(q.float())
    queries = q_data.double() * q_scale.double()[..., None]
    for slot, row in enumerate(zip(page_table.tolist(), page_lengths.tolist(), strict=True)):
        parts, values = [], []
        for page, length in zip(*row, strict=True):
            if length:
                keys = k_data[page, :length].double() * k_scale[page, :length].double()[..., None]
                around = torch.einsum("qhd,khd->qhk", queries[slot], keys)
                parts.append(
                    around + torch.einsum("qhd,hd->qh", q[slot].double(), k_mean[page].double())[..., None]
                )
                value_scale = 1.0 if v_scale is None else v_scale[page].double()[:, None]
                values.append(v_pages[page, :length].double() * value_scale)
        if not parts:
            continue
        scores = torch.cat(parts, -1) * scale
        out[slot] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), torch.cat(values)).to(q.dtype)
        lse[slot] = scores.logsumexp(-1).float()
    return out, lse
