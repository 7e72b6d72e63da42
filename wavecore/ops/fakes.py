"""Fake implementations: shapes, strides and dtypes of results, for PyTorch's compiler and exporter.

They check the arguments, and promise contiguous results, which every backend keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.ops import checks, checks_int8


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    return x.new_empty(x.shape)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    return x.new_empty(x.shape)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return x.new_empty(x.shape)


def qkv_page_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_ids: Tensor,
    eps: float,
    unroped_pages: Tensor | None = None,
    unroped_ids: Tensor | None = None,
    peer_k_pages: Tensor | None = None,
    peer_v_pages: Tensor | None = None,
    peer_ids: Tensor | None = None,
) -> Tensor:
    checks.qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids,
        peer_k_pages, peer_v_pages, peer_ids,
    )  # fmt: skip
    return q.new_empty((*q.shape[:2], *k_pages.shape[2:]))


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    return q.new_empty(q.shape)


def paged_attention_lse(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out = paged_attention(q, k_pages, v_pages, page_table, page_lengths, scale)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    checks.linear(x, weight, bias, residual, gate)
    return x.new_empty((*x.shape[:-1], weight.shape[0]))


def gelu(x: Tensor) -> Tensor:
    checks_int8.gelu(x)
    return x.new_empty(x.shape)


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    checks_int8.renoise_step(x, velocity, noise, sigma, next_sigma)
    return x.new_empty(x.shape), x.new_empty(x.shape)


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    checks_int8.quantize_tokens(x)
    return _quantized(x)


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    checks_int8.layer_norm_modulate_quantize(x, shift, scale)
    return _quantized(x)


def _quantized(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.new_empty(x.shape, dtype=torch.int8), x.new_empty(x.shape[:-1], dtype=torch.float32)


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
    return tokens.new_empty((*tokens.shape[:-1], *channel_scale.shape), dtype=dtype)


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    checks_int8.quantize_key_pages(k_pages, page_ids, page_lengths, data, scale, mean)


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    checks_int8.quantize_value_pages(v_pages, page_ids, page_lengths, data, scale)


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
    return q.new_empty(q.shape)


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
    out = paged_attention_int8(q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths, scale, v_scale)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)
