"""Operations of the models, `torch.ops.wavecore.*`: the one place that chooses an implementation.

In the shapes below s = slots, t = tokens of a slot, f = latent frames of a slot, h = heads, d = head size,
D = h * d, p = pages, n = tokens of a page, m = pages that a slot reads. Floating-point tensors are float32,
bfloat16 or float16 and, unless said otherwise, of one dtype; any strides are taken. Results are contiguous.
Arithmetic is in float32 at least. A wrong argument raises `wavecore.errors.UsageError`, which names it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.ops import eager, eager_int8, gradient
from wavecore.ops.backend import BACKENDS, selected
from wavecore.ops.int8 import (
    PackedInt8,
    QuantizedTokens,
    int8_linear,
    layer_norm_modulate_quantize,
    pack_int8,
    quantize_tokens,
)
from wavecore.ops.int8_pages import (
    QuantizedKeyPages,
    QuantizedValuePages,
    empty_key_pages,
    empty_value_pages,
    key_page_bytes,
    key_pages_in,
    paged_attention_int8,
    quantize_key_pages,
    quantize_value_pages,
)
from wavecore.ops.layers import (
    OutputWeights,
    QueryWeights,
    attention,
    block_output,
    block_queries,
)
from wavecore.ops.library import LIBRARY
from wavecore.ops.pages import paged_attention, qkv_page_write, rope_shift

__all__ = [
    "BACKENDS",
    "OutputWeights",
    "PackedInt8",
    "QuantizedKeyPages",
    "QuantizedTokens",
    "QuantizedValuePages",
    "QueryWeights",
    "attention",
    "backend",
    "block_output",
    "block_queries",
    "empty_key_pages",
    "empty_value_pages",
    "gate_residual",
    "gelu",
    "int8_linear",
    "key_page_bytes",
    "key_pages_in",
    "layer_norm_modulate",
    "layer_norm_modulate_quantize",
    "linear",
    "pack_int8",
    "paged_attention",
    "paged_attention_int8",
    "qkv_page_write",
    "quantize_key_pages",
    "quantize_tokens",
    "quantize_value_pages",
    "renoise_step",
    "rms_norm",
    "rope_shift",
    "set_backend",
    "unavailable",
]

_ops = getattr(torch.ops, LIBRARY.ns)
# Bound once: looking an operation up by name costs as much as a tenth of a small kernel.
_layer_norm_modulate = _ops.layer_norm_modulate.default
_gate_residual = _ops.gate_residual.default
_rms_norm = _ops.rms_norm.default
_linear = _ops.linear.default
_gelu = _ops.gelu.default
_renoise_step = _ops.renoise_step.default


def set_backend(name: str) -> None:
    """Force the implementation of every operation.

    Parameters
    ----------
    name : str
        "auto" (native kernels on the CPU, Triton on CUDA, PyTorch where those are missing), "native",
        "triton", "torch" (PyTorch in the dtype of the arguments) or "reference" (PyTorch in float64).
        The environment variable ``WAVECORE_BACKEND`` sets it at import.

    Raises
    ------
    UsageError
        If the name is unknown. That a forced backend cannot run is raised at the first operation.
    """
    selected.select(name)


def backend() -> str:
    """Name of the selected backend, as given to `set_backend`."""
    return selected.name


def unavailable(name: str, device: torch.device | str) -> str | None:
    """Why backend `name` cannot run on a device such as "cpu" or "cuda:0", or None when it can."""
    return selected.unavailable(name, torch.device(device).type)


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    """Layer norm without affine parameters, then scale and shift of the latent frame of each token.

    ``(x - mean) / sqrt(variance + eps) * (1 + scale) + shift``; token ``i`` belongs to frame
    ``i // (t // f)``. Differentiable (in PyTorch code) where a gradient is asked for.

    Parameters
    ----------
    x : Tensor [s, t, D]
        Hidden state.
    shift, scale : Tensor [s, f, D]
        Modulation, in the dtype of `x` or float32; f divides t.
    eps : float
        Added to the variance.

    Returns
    -------
    Tensor [s, t, D]
        In the dtype of `x`.
    """
    if gradient.wanted(x, shift, scale):
        return eager.layer_norm_modulate(x, shift, scale, eps)
    return _layer_norm_modulate(x, shift, scale, eps)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    """Gated residual ``x + y * gate``, with the gate of the latent frame of each token.

    Differentiable (in PyTorch code) where a gradient is asked for.

    Parameters
    ----------
    x, y : Tensor [s, t, D]
        Hidden state and what a layer adds to it.
    gate : Tensor [s, f, D]
        Gate, in the dtype of `x` or float32; token ``i`` belongs to frame ``i // (t // f)``.

    Returns
    -------
    Tensor [s, t, D]
        In the dtype of `x`.
    """
    if gradient.wanted(x, y, gate):
        return eager.gate_residual(x, y, gate)
    return _gate_residual(x, y, gate)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root-mean-square norm over the whole last dimension, ``x / sqrt(mean(x^2) + eps) * weight``.

    Wan 2.1 norms queries and keys so, across all heads at once. Differentiable (in PyTorch code) where a
    gradient is asked for.

    Parameters
    ----------
    x : Tensor [..., D]
        Input.
    weight : Tensor [D]
        In the dtype of `x` or float32.
    eps : float
        Added to the mean square.

    Returns
    -------
    Tensor [..., D]
        In the dtype of `x`.
    """
    if gradient.wanted(x, weight):
        return eager.rms_norm(x, weight, eps)
    return _rms_norm(x, weight, eps)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    gelu: bool = False,
    residual: Tensor | None = None,
    gate: Tensor | None = None,
) -> Tensor:
    """Linear layer with what follows it, ``residual + gate * gelu(x @ weight.T + bias)``.

    On the CPU a result does not depend on the rows that are computed beside it, except in bfloat16 where the
    processor has matrix units for it and PyTorch's library runs. Differentiable (in PyTorch code) where a
    gradient is asked for.

    Parameters
    ----------
    x : Tensor [..., K]
        Input.
    weight : Tensor [outputs, K]
        In the dtype of `x`.
    bias : Tensor [outputs], optional
        In the dtype of `x` or float32.
    gelu : bool
        Apply GELU (tanh approximation).
    residual : Tensor [..., outputs], optional
        Added to the result; [s, t, outputs] with a gate.
    gate : Tensor [s, f, outputs], optional
        Gate of the latent frame of each token, as in `gate_residual`; only with `residual`.

    Returns
    -------
    Tensor [..., outputs]
    """
    if gradient.wanted(x, weight, bias, residual, gate):
        return eager.linear(x, weight, bias, gelu, residual, gate)
    return _linear(x, weight, bias, gelu, residual, gate)


def gelu(x: Tensor) -> Tensor:
    """GELU by its tanh approximation, as Wan 2.1 has it in its feed-forward.

    Differentiable (in PyTorch code) where a gradient is asked for.

    Parameters
    ----------
    x : Tensor [..., D]
        Input.

    Returns
    -------
    Tensor [..., D]
    """
    if gradient.wanted(x):
        return F.gelu(x, approximate="tanh")
    return _gelu(x)


def renoise_step(
    x: Tensor, velocity: Tensor, noise: Tensor, sigma: Tensor, next_sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """From one noise level to the next: ``x0 = x - sigma v``, then ``(1 - sigma') x0 + sigma' noise``.

    Differentiable (in PyTorch code) where a gradient is asked for.

    Parameters
    ----------
    x, velocity, noise : Tensor [s, c, f, h, w]
        Noisy latents, what the model predicts, and fresh noise.
    sigma, next_sigma : Tensor float32 [s, f]
        Share of noise of each latent frame, now and then.

    Returns
    -------
    x0, noised : Tensor [s, c, f, h, w]
        Estimate of the clean latents, and the latents of the next level, from the unrounded estimate.
    """
    if gradient.wanted(x, velocity, noise, sigma, next_sigma):
        return eager_int8.renoise_step(x, velocity, noise, sigma, next_sigma)
    return _renoise_step(x, velocity, noise, sigma, next_sigma)
