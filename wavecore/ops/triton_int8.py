"""The operations on int8, and the point-wise ones, on the Triton kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.errors import UsageError
from wavecore.ops import checks_int8
from wavecore.triton_kernels import int8_linear as linear
from wavecore.triton_kernels import paged_attention as attention
from wavecore.triton_kernels import pointwise, quantize

FLOAT8_CAPABILITY = (8, 9)


def gelu(x: Tensor) -> Tensor:
    checks_int8.gelu(x)
    return pointwise.gelu(x)


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    checks_int8.renoise_step(x, velocity, noise, sigma, next_sigma)
    return pointwise.renoise_step(x, velocity, noise, sigma, next_sigma)


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    checks_int8.quantize_tokens(x)
    return quantize.quantize_tokens(x, gelu)


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    checks_int8.layer_norm_modulate_quantize(x, shift, scale)
    return quantize.layer_norm_modulate_quantize(x, shift, scale, eps)


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
    arguments = (tokens, token_scale, weight, channel_scale, bias, residual, gate, dtype)
    checks_int8.int8_linear(*arguments)
    return linear.int8_linear(*arguments)


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    checks_int8.quantize_key_pages(k_pages, page_ids, page_lengths, data, scale, mean)
    quantize.quantize_key_pages(k_pages, page_ids, page_lengths, data, scale, mean)


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    checks_int8.quantize_value_pages(v_pages, page_ids, page_lengths, data, scale)
    quantize.quantize_value_pages(v_pages, page_ids, page_lengths, data, scale)


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
    quantised = _scales(q, k_scale, k_mean, v_scale)
    return attention.paged_attention(q, k_data, v_pages, page_table, page_lengths, scale, quantised)


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
    quantised = _scales(q, k_scale, k_mean, v_scale)
    return attention.paged_attention_lse(q, k_data, v_pages, page_table, page_lengths, scale, quantised)


def _scales(q: Tensor, k_scale: Tensor, k_mean: Tensor, v_scale: Tensor | None) -> attention.Scales:
    if v_scale is not None and q.is_cuda:
        capability = torch.cuda.get_device_capability(q.device)
        if capability < FLOAT8_CAPABILITY:
            raise UsageError(
                f"v_pages: expected {q.dtype} on a device of compute capability "
                f"{'.'.join(map(str, capability))}, got float8, which begins with 8.9"
            )
    return attention.Scales(k_scale, k_mean, v_scale)
