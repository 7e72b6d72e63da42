"""Public functions on int8: quantisation, linear layers, attention to int8 keys.

Numbers are ``data * scale`` with data from -127 to 127, and a scale (largest magnitude divided by 127) for
each token of an activation, each output channel of a weight, each token and head of a key. An all-zero row
has scale 0. A row with a NaN or an infinity has scale NaN, and so have the results made from it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, overload

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.errors import UsageError
from wavecore.ops import gradient
from wavecore.ops.checks_int8 import padded
from wavecore.ops.library import LIBRARY
from wavecore.ops.reference_int8 import quantize_rows

_ops = getattr(torch.ops, LIBRARY.ns)
_quantize_tokens = _ops.quantize_tokens.default
_layer_norm_modulate_quantize = _ops.layer_norm_modulate_quantize.default
_int8_linear = _ops.int8_linear.default
_quantize_key_pages = _ops.quantize_key_pages.default
_quantize_value_pages = _ops.quantize_value_pages.default
_paged_attention_int8 = _ops.paged_attention_int8.default
_paged_attention_int8_lse = _ops.paged_attention_int8.lse


class PackedInt8(NamedTuple):
    """A weight in int8, the same on every device.

    Attributes
    ----------
    data : Tensor int8 [outputs rounded up to 16, inputs rounded up to 64]
        Rows of input weights; zeros where it is padded.
    scale : Tensor float32 [outputs]
        Scale of each output channel.
    """

    data: Tensor
    scale: Tensor


class QuantizedTokens(NamedTuple):
    """An activation in int8.

    Attributes
    ----------
    data : Tensor int8 [..., K]
        Numbers of each token.
    scale : Tensor float32 [...]
        Scale of each token.
    """

    data: Tensor
    scale: Tensor


class QuantizedKeyPages(NamedTuple):
    """Keys in int8, without the mean that the tokens of a page have in common.

    Attributes
    ----------
    data : Tensor int8 [p, n, h, d]
        Numbers of each key; zeros behind the valid tokens of a page.
    scale : Tensor float32 [p, n, h]
        Scale of each token and head.
    mean : Tensor float32 [p, h, d]
        Mean key of each page ("smoothed keys" of SageAttention, section 3.1).
    """

    data: Tensor
    scale: Tensor
    mean: Tensor


class QuantizedValuePages(NamedTuple):
    """Values in float8, for matrix units that take it.

    Attributes
    ----------
    data : Tensor float8_e4m3fn [p, n, h, d]
        Numbers of each value; zeros behind the valid tokens of a page.
    scale : Tensor float32 [p, h]
        Scale of each page and head: largest magnitude divided by 448.
    """

    data: Tensor
    scale: Tensor


def pack_int8(weight: Tensor) -> PackedInt8:
    """Quantise the weight of a linear layer, once, when a model is loaded.

    Parameters
    ----------
    weight : Tensor [outputs, inputs]
        float32, bfloat16 or float16.

    Raises
    ------
    UsageError
        For another rank or dtype, or a number that is not finite.
    """
    if weight.dim() != 2 or not weight.is_floating_point():
        raise UsageError(
            f"weight: expected a floating-point [outputs, inputs], got {weight.dtype} {list(weight.shape)}"
        )
    if not weight.is_meta and not weight.isfinite().all():
        raise UsageError("weight: expected finite numbers, got NaN or infinity")
    data, scale = quantize_rows(weight.detach().float())
    rows, columns = padded(*weight.shape)
    return PackedInt8(F.pad(data, (0, columns - weight.shape[1], 0, rows - weight.shape[0])), scale)


def quantize_tokens(x: Tensor, gelu: bool = False) -> QuantizedTokens:
    """Quantise an activation, with `gelu` behind a GELU (tanh approximation) in the same pass.

    Parameters
    ----------
    x : Tensor [..., K]
        Activation.
    gelu : bool
        Apply GELU first; the result is not rounded to the dtype of `x` in between.
    """
    gradient.refuse(x=x)
    return QuantizedTokens(*_quantize_tokens(x, gelu))


def layer_norm_modulate_quantize(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> QuantizedTokens:
    """`wavecore.ops.layer_norm_modulate` and quantisation of its result, in one pass.

    Arguments as there; the result is not rounded to the dtype of `x` in between.
    """
    gradient.refuse(x=x, shift=shift, scale=scale)
    return QuantizedTokens(*_layer_norm_modulate_quantize(x, shift, scale, eps))


def int8_linear(
    x: Tensor | QuantizedTokens,
    packed_weight: PackedInt8,
    bias: Tensor | None = None,
    *,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
    gelu: bool = False,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Linear layer with int8 weights and activations, ``residual + gate * (x @ weight.T + bias)``.

    Products are summed exactly in int32; scales, bias, gate and residual are applied in float32.

    Parameters
    ----------
    x : Tensor [..., K] or QuantizedTokens
        Activation; quantised here unless it is already. A quantised one serves several layers.
    packed_weight : PackedInt8
        As `pack_int8` gives it.
    bias : Tensor [outputs], optional
        In `dtype` or float32.
    residual : Tensor [..., outputs], optional
        Added to the result; of `dtype`. [s, t, outputs] with a gate.
    gate : Tensor [s, f, outputs], optional
        Gate of the latent frame of each token, as in `wavecore.ops.gate_residual`; only with `residual`.
    gelu : bool
        Apply GELU to `x` before it is quantised.
    dtype : torch.dtype, optional
        Of the result; that of `x`, or for quantised tokens of `residual`, or float32.

    Returns
    -------
    Tensor [..., outputs]

    Raises
    ------
    UsageError
        For a wrong argument, or where a gradient is asked for.
    """
    gradient.refuse(bias=bias, residual=residual, gate=gate)
    if isinstance(x, Tensor):
        dtype = dtype or x.dtype
        x = quantize_tokens(x, gelu)
    elif gelu:
        raise UsageError("gelu: expected False for tokens that are already quantised, got True")
    if dtype is None:
        dtype = torch.float32 if residual is None else residual.dtype
    return _int8_linear(*x, *packed_weight, bias, residual, gate, dtype)


def empty_key_pages(
    pages: int, page_tokens: int, heads: int, head_dim: int, device: torch.device | str = "cpu"
) -> QuantizedKeyPages:
    """Pages of quantised keys, all zero."""
    return QuantizedKeyPages(
        torch.zeros(pages, page_tokens, heads, head_dim, dtype=torch.int8, device=device),
        torch.zeros(pages, page_tokens, heads, device=device),
        torch.zeros(pages, heads, head_dim, device=device),
    )


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, out: QuantizedKeyPages
) -> None:
    """Quantise whole pages of keys, once, when they have been written.

    Parameters
    ----------
    k_pages : Tensor [p, n, h, d]
        Normed and rotated keys, as `wavecore.ops.qkv_page_write` stores them.
    page_ids : Tensor int32 [m]
        Pages to quantise; -1 skips the entry.
    page_lengths : Tensor int32 [m]
        Valid tokens of each; what lies behind them is neither read nor counted in the mean.
    out : QuantizedKeyPages
        Pages of the same sizes, written in place at the same ids.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id or length out of range (on the CPU).
    """
    _quantize_key_pages(k_pages, page_ids, page_lengths, *out)


def empty_value_pages(
    pages: int, page_tokens: int, heads: int, head_dim: int, device: torch.device | str = "cpu"
) -> QuantizedValuePages:
    """Pages of values in float8, all zero."""
    return QuantizedValuePages(
        torch.zeros(pages, page_tokens, heads, head_dim, dtype=torch.float8_e4m3fn, device=device),
        torch.zeros(pages, heads, device=device),
    )


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, out: QuantizedValuePages
) -> None:
    """Quantise whole pages of values to float8, once, when they have been written.

    Parameters
    ----------
    v_pages : Tensor [p, n, h, d]
        Values, as `wavecore.ops.qkv_page_write` stores them.
    page_ids, page_lengths
        As in `quantize_key_pages`.
    out : QuantizedValuePages
        Pages of the same sizes, written in place at the same ids.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id or length out of range (on the CPU).
    """
    _quantize_value_pages(v_pages, page_ids, page_lengths, *out)


@overload
def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`wavecore.ops.paged_attention` with scores from int8 queries and keys.

    Queries are quantised for each token and head; their product with the mean of a page is taken unrounded.
    Values, and the products with them, stay in the dtype of `q`. Or the values are float8, and then the
    weights too: Hopper has such products at twice the rate; the cosine to exact attention is 0.9993 then,
    not 0.9999.

    Parameters
    ----------
    q : Tensor [s, tq, h, d]
        Queries; d up to 512.
    k_pages : QuantizedKeyPages
        Keys.
    v_pages : Tensor [p, n, h, d] or QuantizedValuePages
        Values. In float8 on a GPU from compute capability 8.9 on; a CPU widens them first.
    page_table, page_lengths, scale, return_lse
        As in `wavecore.ops.paged_attention`.

    Returns
    -------
    out : Tensor [s, tq, h, d]
        0 for a slot whose context is empty.
    lse : Tensor float32 [s, tq, h]
        With `return_lse` only.
    """
    values, v_scale = v_pages if isinstance(v_pages, QuantizedValuePages) else (v_pages, None)
    gradient.refuse(q=q, v_pages=values)
    if scale is None:
        scale = max(1, q.shape[-1]) ** -0.5
    run = _paged_attention_int8_lse if return_lse else _paged_attention_int8
    return run(q, *k_pages, values, page_table, page_lengths, scale, v_scale)
