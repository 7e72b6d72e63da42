"""The C++ kernels of `wavecore._native`, on CPU tensors.

Arguments have been checked by the caller, but for page ids and lengths, which the native module checks.
Results are allocated here; the kernels use as many threads as `torch.get_num_threads` says.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore import _native

INSTRUCTION_SETS = tuple(_native.supported_instruction_sets())


class _Kernels:
    """The kernels of the selected instruction set."""

    def __init__(self) -> None:
        self.select(INSTRUCTION_SETS[-1])

    def select(self, name: str) -> None:
        self.operations = _native.Operations(name)


_kernels = _Kernels()


def select_instruction_set(name: str | None) -> None:
    """Force an instruction set ("portable", "avx2", "avx512"), or take the fastest when None."""
    _kernels.select(name or INSTRUCTION_SETS[-1])


def instruction_set() -> str:
    """Name of the instruction set in use."""
    return _kernels.operations.instruction_set


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    _kernels.operations.layer_norm_modulate(x, shift, scale, out, eps, torch.get_num_threads())
    return out


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    out = torch.empty(x.shape, dtype=x.dtype)
    _kernels.operations.gate_residual(x, y, gate, out, torch.get_num_threads())
    return out


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows = x.reshape(-1, x.shape[-1]) if x.numel() else x.new_empty((0, x.shape[-1]))
    out = torch.empty(rows.shape, dtype=x.dtype)
    _kernels.operations.rms_norm(rows, weight, out, eps, torch.get_num_threads())
    return out.view(x.shape)


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
    unroped_pages: Tensor | None,
    unroped_ids: Tensor | None,
) -> Tensor:
    q_out = torch.empty((*q.shape[:2], *k_pages.shape[2:]), dtype=q.dtype)
    _kernels.operations.qkv_page_write(
        q,
        k,
        v,
        q_weight,
        k_weight,
        rope,
        k_pages,
        v_pages,
        page_ids,
        unroped_pages,
        unroped_ids,
        q_out,
        eps,
        torch.get_num_threads(),
    )
    return q_out


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    _kernels.operations.rope_shift(
        unroped_pages, source_ids, k_pages, target_ids, rope, torch.get_num_threads()
    )


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    out = torch.empty(q.shape, dtype=q.dtype)
    lse = torch.empty(q.shape[:3] if return_lse else (0,), dtype=torch.float32)
    _kernels.operations.paged_attention(
        q,
        k_pages,
        v_pages,
        page_table,
        page_lengths,
        out,
        lse if return_lse else None,
        scale,
        torch.get_num_threads(),
    )
    return out, lse
