"""Argument checks of the operations on int8, as those of `wavecore.ops.checks`."""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.ops import checks
from wavecore.ops.checks import _device, _floating, _int32, _like, _pages, _rank, _shape, _wrong

INPUT_PADDING = 64  # inputs of a packed weight are a multiple of this: whole vectors of every instruction set
OUTPUT_PADDING = 16  # and its outputs of this
LARGEST_HEAD = 512


def padded(outputs: int, inputs: int) -> tuple[int, int]:
    """Shape of the data of a packed weight."""
    return (
        -(-outputs // OUTPUT_PADDING) * OUTPUT_PADDING,
        -(-inputs // INPUT_PADDING) * INPUT_PADDING,
    )


def _of(name: str, tensor: Tensor, dtype: torch.dtype, first_name: str, first: Tensor) -> None:
    if tensor.dtype != dtype:
        raise _wrong(name, str(dtype), tensor.dtype)
    _device(name, tensor, first_name, first)


def quantize_tokens(x: Tensor) -> None:
    """Check the argument of `wavecore.ops.quantize_tokens`."""
    if x.dim() == 0:
        raise _wrong("x", "[..., K]", list(x.shape))
    _floating("x", x)


def layer_norm_modulate_quantize(x: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Check the arguments of `wavecore.ops.layer_norm_modulate_quantize`."""
    checks.layer_norm_modulate(x, shift, scale)


def int8_linear(
    tokens: Tensor,
    token_scale: Tensor,
    weight: Tensor,
    channel_scale: Tensor,
    bias: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    dtype: torch.dtype,
) -> None:
    """Check the arguments of `wavecore.ops.int8_linear`."""
    if tokens.dim() == 0:
        raise _wrong("x", "[..., K]", list(tokens.shape))
    if tokens.dtype != torch.int8:
        raise _wrong("x.data", "torch.int8", tokens.dtype)
    _shape("x.scale", token_scale, tuple(tokens.shape[:-1]), "[...] as x.data [..., K]")
    _of("x.scale", token_scale, torch.float32, "x.data", tokens)
    _rank("packed_weight.scale", channel_scale, 1, "[outputs]")
    _of("packed_weight.scale", channel_scale, torch.float32, "x.data", tokens)
    outputs, inputs = channel_scale.shape[0], tokens.shape[-1]
    _shape(
        "packed_weight.data",
        weight,
        padded(outputs, inputs),
        f"a weight of {outputs} outputs and {inputs} inputs, padded",
    )
    _of("packed_weight.data", weight, torch.int8, "x.data", tokens)
    if dtype not in checks.FLOATING:
        raise _wrong("dtype", "float32, bfloat16 or float16", dtype)
    checks.ending((*tokens.shape[:-1], outputs), dtype, bias, residual, gate, "x.data", tokens)


def gelu(x: Tensor) -> None:
    """Check the argument of `wavecore.ops.gelu`."""
    if x.dim() == 0:
        raise _wrong("x", "[..., D]", list(x.shape))
    _floating("x", x)


def renoise_step(x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor) -> None:
    """Check the arguments of `wavecore.ops.renoise_step`."""
    _rank("x", x, 5, "[s, c, f, h, w]")
    _floating("x", x)
    for name, tensor in (("velocity", velocity), ("noise", noise)):
        _shape(name, tensor, tuple(x.shape), "the shape of x")
        _like(name, tensor, "x", x)
    for name, tensor in (("sigma", sigma), ("next_sigma", next_sigma)):
        _shape(name, tensor, (x.shape[0], x.shape[2]), "[s, f]")
        _of(name, tensor, torch.float32, "x", x)


def _key_pages(name: str, pages: tuple[Tensor, Tensor, Tensor], shape: tuple[int, ...], like: Tensor) -> None:
    data, scale, mean = pages
    count, page_tokens, heads, head_dim = shape
    _shape(f"{name}.data", data, shape, "[p, n, h, d]")
    _of(f"{name}.data", data, torch.int8, "q", like)
    _shape(f"{name}.scale", scale, (count, page_tokens, heads), "[p, n, h]")
    _of(f"{name}.scale", scale, torch.float32, "q", like)
    _shape(f"{name}.mean", mean, (count, heads, head_dim), "[p, h, d]")
    _of(f"{name}.mean", mean, torch.float32, "q", like)


def _value_pages(name: str, pages: tuple[Tensor, Tensor], like: Tensor) -> None:
    data, scale = pages
    _rank(f"{name}.data", data, 4, "[p, n, h, d]")
    _of(f"{name}.data", data, torch.float8_e4m3fn, "q", like)
    _shape(f"{name}.scale", scale, (data.shape[0], data.shape[2]), "[p, h]")
    _of(f"{name}.scale", scale, torch.float32, "q", like)


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor, mean: Tensor
) -> None:
    """Check the arguments of `wavecore.ops.quantize_key_pages`."""
    _rank("k_pages", k_pages, 4, "[p, n, h, d]")
    _floating("k_pages", k_pages)
    _pages("k_pages", k_pages, "k_pages", k_pages)
    _key_pages("out", (data, scale, mean), tuple(k_pages.shape), k_pages)
    _written_pages("k_pages", k_pages, page_ids, page_lengths, data, {"out.scale": scale, "out.mean": mean})


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, data: Tensor, scale: Tensor
) -> None:
    """Check the arguments of `wavecore.ops.quantize_value_pages`."""
    _rank("v_pages", v_pages, 4, "[p, n, h, d]")
    _floating("v_pages", v_pages)
    _pages("v_pages", v_pages, "v_pages", v_pages)
    _shape("out.data", data, tuple(v_pages.shape), "the shape of v_pages")
    _value_pages("out", (data, scale), v_pages)
    _written_pages("v_pages", v_pages, page_ids, page_lengths, data, {"out.scale": scale})


def _written_pages(
    name: str, pages: Tensor, ids: Tensor, lengths: Tensor, data: Tensor, dense: dict[str, Tensor]
) -> None:
    checks._written("out.data", data)
    for part, tensor in dense.items():
        if len(tensor) and not tensor[0].is_contiguous():
            raise _wrong(part, "pages that are contiguous, since they are written in place", tensor.stride())
    _rank("page_ids", ids, 1, "[m]")
    _int32("page_ids", ids, name, pages)
    _shape("page_lengths", lengths, tuple(ids.shape), "the shape of page_ids")
    _int32("page_lengths", lengths, name, pages)


def paged_attention_int8(
    q: Tensor,
    k_data: Tensor,
    k_scale: Tensor,
    k_mean: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    v_scale: Tensor | None = None,
) -> None:
    """Check the arguments of `wavecore.ops.paged_attention_int8`."""
    values = v_pages
    if v_scale is not None:
        _value_pages("v_pages", (v_pages, v_scale), q)
        values = q.new_empty(()).expand(v_pages.shape)  # their shape, in the dtype of q
    checks.context(q, "v_pages", values, page_table, page_lengths)
    if q.shape[3] > LARGEST_HEAD:
        raise _wrong("q", f"a head size of at most {LARGEST_HEAD}", q.shape[3])
    _key_pages("k_pages", (k_data, k_scale, k_mean), tuple(v_pages.shape), q)


def check_lengths(page_lengths: Tensor, page_tokens: int) -> None:
    """Check that every length is one of a page of `page_tokens` tokens; reads the data."""
    for value in page_lengths.flatten().tolist():
        if not 0 <= value <= page_tokens:
            raise _wrong("page_lengths", f"lengths from 0 to {page_tokens}", value)
