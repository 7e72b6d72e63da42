"""The operations on int8 in PyTorch, in the dtype of the arguments."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.ops import checks, checks_int8, eager, reference_int8
from wavecore.ops.reference_int8 import quantize_rows


def gelu(x: Tensor) -> Tensor:
    checks_int8.gelu(x)
    return F.gelu(x, approximate="tanh").contiguous()


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    checks_int8.renoise_step(x, velocity, noise, sigma, next_sigma)
    now, then = (level[:, None, :, None, None] for level in (sigma, next_sigma))
    x0 = x.float() - now * velocity.float()
    noised = torch.lerp(x0, noise.float(), then)
    return x0.to(x.dtype).contiguous(), noised.to(x.dtype).contiguous()


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    checks_int8.quantize_tokens(x)
    values = F.gelu(x.float(), approximate="tanh") if gelu else x.float()
    return quantize_rows(values.contiguous())


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    checks_int8.layer_norm_modulate_quantize(x, shift, scale)
    return quantize_rows(eager.layer_norm_modulate(x.float(), shift.float(), scale.float(), eps))


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
    outputs, inputs = channel_scale.shape[0], tokens.shape[-1]
    rows = F.pad(tokens.reshape(-1, inputs), (0, weight.shape[1] - inputs))
    # CUDA's integer product wants more than 16 rows.
    sums = torch._int_mm(F.pad(rows, (0, 0, 0, max(0, 17 - rows.shape[0]))), weight.T)
    out = sums[: rows.shape[0], :outputs] * token_scale.reshape(-1, 1) * channel_scale
    if bias is not None:
        out = out + bias
    out = out.reshape(*tokens.shape[:-1], outputs)
    if residual is not None:
        if gate is None or residual.shape[1] == 0:
            out = residual + out
        else:
            out = eager.gate_residual(residual.float(), out.float(), gate.float())
    return out.to(dtype).contiguous()


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    checks_int8.quantize_key_pages(k_pages, page_ids, page_lengths, data, scale, mean)
    checks.check_page_ids("page_ids", page_ids, k_pages.shape[0])
    checks_int8.check_lengths(page_lengths, k_pages.shape[1])
    for page, length in zip(page_ids.tolist(), page_lengths.tolist(), strict=True):
        if page >= 0:
            keys = k_pages[page, :length].float()
            mean[page] = keys.mean(0) if length else 0.0
            data[page, length:], scale[page, length:] = 0, 0.0
            data[page, :length], scale[page, :length] = quantize_rows(keys - mean[page])


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    reference_int8.quantize_value_pages(v_pages, page_ids, page_lengths, data, scale)


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
    checks_int8.paged_attention_int8(q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths, v_scale)
    keys, values = _keys(k_data, k_scale, k_mean, q.dtype), widened_values(v_pages, v_scale, q.dtype)
    return eager.paged_attention(q, keys, values, page_table, page_lengths, scale)


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
    keys, values = _keys(k_data, k_scale, k_mean, q.dtype), widened_values(v_pages, v_scale, q.dtype)
    return eager.paged_attention_lse(q, keys, values, page_table, page_lengths, scale)


def widened_values(data: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
    """Values [p, n, h, d] as they are, or what float8 ones with a scale [p, h] stand for."""
    return data if scale is None else (data.float() * scale[:, None, :, None]).to(dtype)


def _keys(data: Tensor, scale: Tensor, mean: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys that the integers stand for, [p, n, h, d]; queries stay unrounded here."""
    return (data * scale[..., None] + mean[:, None]).to(dtype)
