"""The operations on int8, and the point-wise ones, on the C++ kernels."""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore import _native
from wavecore.ops import checks_int8, eager_int8
from wavecore.ops.eager_int8 import quantize_value_pages as quantize_value_pages
from wavecore.ops.native_kernels import kernels


def gelu(x: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    try:
        kernels.operations.gelu(x, out, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.gelu(x)
        raise
    return out


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    x0 = torch.empty_like(x, memory_format=torch.contiguous_format)
    noised = torch.empty_like(x0)
    tensors = (x, velocity, noise, sigma, next_sigma)
    try:
        kernels.operations.renoise_step(*tensors, x0, noised, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.renoise_step(*tensors)
        raise
    return x0, noised


def quantize_tokens(x: Tensor, gelu: bool) -> tuple[Tensor, Tensor]:
    data = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    scale = torch.empty(x.shape[:-1], dtype=torch.float32)
    try:
        kernels.operations.quantize_tokens(x, data, scale.view(-1), gelu, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.quantize_tokens(x)
        raise
    return data, scale


def layer_norm_modulate_quantize(
    x: Tensor, shift: Tensor, scale: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    data = torch.empty_like(x, dtype=torch.int8, memory_format=torch.contiguous_format)
    token_scale = torch.empty(x.shape[:-1], dtype=torch.float32)
    try:
        kernels.operations.layer_norm_modulate_quantize(
            x, shift, scale, data, token_scale, eps, torch.get_num_threads()
        )
    except _native.MismatchError:
        checks_int8.layer_norm_modulate_quantize(x, shift, scale)
        raise
    return data, token_scale


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
    out = torch.empty((*tokens.shape[:-1], *channel_scale.shape), dtype=dtype)
    tensors = (tokens, token_scale, weight, channel_scale, bias, residual, gate)
    try:
        kernels.operations.int8_linear(*tensors, out, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.int8_linear(*tensors, dtype)
        raise
    return out


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    tensors = (k_pages, page_ids, page_lengths, data, scale, mean)
    try:
        kernels.operations.quantize_key_pages(*tensors, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.quantize_key_pages(*tensors)
        raise


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
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _attend((q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths), v_scale, out, None, scale)
    return out


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
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32)
    _attend((q, k_data, k_scale, k_mean, v_pages, page_table, page_lengths), v_scale, out, lse, scale)
    return out, lse


def _attend(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor],
    v_scale: Tensor | None,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
) -> None:
    if v_scale is not None:  # there are no instructions for float8
        checks_int8.paged_attention_int8(*tensors, v_scale)
        values = eager_int8.widened_values(tensors[4], v_scale, out.dtype)
        tensors = (*tensors[:4], values, *tensors[5:])
    try:
        kernels.operations.paged_attention_int8(*tensors, out, lse, scale, torch.get_num_threads())
    except _native.MismatchError:
        checks_int8.paged_attention_int8(*tensors)
        raise
