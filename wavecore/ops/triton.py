"""The Triton kernels of `wavecore.triton_kernels`: on CUDA tensors, or on CPU tensors in the interpreter.

Page ids and lengths are not read on the host, which would wait for the device: `TRITON_DEBUG=1` makes the
kernels check them.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from wavecore.ops import checks
from wavecore.triton_kernels import norm, page_write, pointwise
from wavecore.triton_kernels import paged_attention as attention


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    return norm.layer_norm_modulate(x, shift, scale, eps)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    return norm.gate_residual(x, y, gate)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return norm.rms_norm(x, weight, eps)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    """The product is cuBLAS's, which is faster than a kernel of our own; what follows it is fused."""
    checks.linear(x, weight, bias, residual, gate)
    out = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    if gelu:
        out = pointwise.gelu(out)
    if residual is not None:
        out = residual + out if gate is None else norm.gate_residual(residual, out, gate)
    return out.contiguous()


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
    return page_write.qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids,
        peer_k_pages, peer_v_pages, peer_ids,
    )  # fmt: skip


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)
    page_write.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    return attention.paged_attention(q, k_pages, v_pages, page_table, page_lengths, scale)


def paged_attention_lse(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    return attention.paged_attention_lse(q, k_pages, v_pages, page_table, page_lengths, scale)
