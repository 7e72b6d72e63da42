"""The C++ kernels of `wavecore._native`, on CPU tensors.

The native module checks its arguments; what is wrong with them is put into words here, by the common
checks. Results are allocated here, by `empty_like`, which costs a third of `empty`. The kernels use as many
threads as `torch.get_num_threads` says.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore import _native
from wavecore.ops import checks, composite, native_int8
from wavecore.ops.native_kernels import INSTRUCTION_SETS as INSTRUCTION_SETS
from wavecore.ops.native_kernels import instruction_set as instruction_set
from wavecore.ops.native_kernels import kernels
from wavecore.ops.native_kernels import matrix_units as matrix_units
from wavecore.ops.native_kernels import select_instruction_set as select_instruction_set

# Dtypes whose products PyTorch's library does on matrix units, which these kernels do not use.
_LIBRARY_LINEAR = (torch.bfloat16,) if torch.ops.mkldnn._is_mkldnn_bf16_supported() else ()


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    try:
        kernels.operations.layer_norm_modulate(x, shift, scale, out, eps, torch.get_num_threads())
    except _native.MismatchError:
        checks.layer_norm_modulate(x, shift, scale)
        raise
    return out


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    try:
        kernels.operations.gate_residual(x, y, gate, out, torch.get_num_threads())
    except _native.MismatchError:
        checks.gate_residual(x, y, gate)
        raise
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    try:
        kernels.operations.rms_norm(x, weight, out, eps, torch.get_num_threads())
    except _native.MismatchError:
        checks.rms_norm(x, weight)
        raise
    return out


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    if x.dtype in _LIBRARY_LINEAR:
        return _library_linear(x, weight, bias, gelu, residual, gate)
    out = torch.empty((*x.shape[:-1], *weight.shape[:1]), dtype=x.dtype)
    try:
        kernels.operations.linear(x, weight, bias, residual, gate, out, gelu, torch.get_num_threads())
    except _native.MismatchError:
        checks.linear(x, weight, bias, residual, gate)
        raise
    return out


def _library_linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    checks.linear(x, weight, bias, residual, gate)
    out = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    if gelu:
        out = native_int8.gelu(out)
    if residual is not None:
        out = residual + out if gate is None else gate_residual(residual, out, gate)
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
    tensors = (
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids,
        peer_k_pages, peer_v_pages, peer_ids,
    )  # fmt: skip
    q_out = torch.empty_like(q, memory_format=torch.contiguous_format)
    try:
        kernels.operations.qkv_page_write(*tensors, q_out, eps, torch.get_num_threads())
    except _native.MismatchError:
        checks.qkv_page_write(*tensors)
        raise
    return q_out.view(*q.shape[:2], *k_pages.shape[2:])


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    tensors = (unroped_pages, source_ids, k_pages, target_ids, rope)
    try:
        kernels.operations.rope_shift(*tensors, torch.get_num_threads())
    except _native.MismatchError:
        checks.rope_shift(*tensors)
        raise


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    _attend(q, k_pages, v_pages, page_table, page_lengths, out, None, scale)
    return out


def paged_attention_lse(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    lse = torch.empty(q.shape[:3], dtype=torch.float32)
    _attend(q, k_pages, v_pages, page_table, page_lengths, out, lse, scale)
    return out, lse


def _attend(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    out: Tensor,
    lse: Tensor | None,
    scale: float,
) -> None:
    try:
        kernels.operations.paged_attention(
            q, k_pages, v_pages, page_table, page_lengths, out, lse, scale, torch.get_num_threads()
        )
    except _native.MismatchError:
        checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
        raise


# Halves of a layer, where a library takes part in them, and checks of their arguments in words.
_PARTS = SimpleNamespace(
    backend="native",
    layer_norm_modulate=layer_norm_modulate,
    rms_norm=rms_norm,
    linear=linear,
    qkv_page_write=qkv_page_write,
    paged_attention=paged_attention,
)


def block_queries(
    x: Tensor,
    modulation: Tensor,
    weights: list[Tensor],
    rope: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_ids: Tensor,
    eps: float,
    unroped_pages: Tensor | None = None,
    unroped_ids: Tensor | None = None,
) -> Tensor:
    written = (rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids)
    if x.dtype not in _LIBRARY_LINEAR:
        rows = torch.empty((4, *x.shape), dtype=x.dtype)
        try:
            kernels.operations.block_projections(x, modulation, weights, rows, eps, torch.get_num_threads())
        except _native.MismatchError:
            pass  # nothing to do, or wrong: the parts say what
        else:
            _, q, k, v = rows.unbind()
            return qkv_page_write(q, k, v, weights[6], weights[7], *written)
    return composite.block_queries(_PARTS, x, modulation, weights, *written)


def block_output(
    attended: Tensor,
    x: Tensor,
    modulation: Tensor,
    weights: list[Tensor],
    keys: Tensor,
    values: Tensor,
    eps: float,
) -> Tensor:
    if x.dtype not in _LIBRARY_LINEAR:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        work = torch.empty(3 * x.numel() + attended.shape[:2].numel() * weights[9].shape[0], dtype=x.dtype)
        tensors = (attended, x, modulation, weights, keys, values, work, out)
        try:
            kernels.operations.block_output(*tensors, eps, torch.get_num_threads())
        except _native.MismatchError:
            pass  # nothing to do, or wrong: the parts say what
        else:
            return out
    return composite.block_output(_PARTS, attended, x, modulation, weights, keys, values, eps)
