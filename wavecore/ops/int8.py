"""Public functions on int8: quantisation of weights and activations, linear layers.

Numbers are ``data * scale`` with data from -127 to 127, and a scale (largest magnitude divided by 127) for
each token of an activation, each output channel of a weight, each token and head of a key. An all-zero row
has scale 0. A row with a NaN or an infinity has scale NaN, and so have the results made from it.
"""

from __future__ import annotations

from typing import NamedTuple

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
