"""Registration of `torch.ops.wavecore.*`: schemas, implementations, fake implementations.

One implementation serves every device: it checks the arguments and hands them to the module that
`wavecore.ops.backend` chose for the device. The fake implementations promise contiguous results, which every
backend keeps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.ops import checks
from wavecore.ops.backend import selected

SCHEMAS = (
    "layer_norm_modulate(Tensor x, Tensor shift, Tensor scale, float eps) -> Tensor",
    "gate_residual(Tensor x, Tensor y, Tensor gate) -> Tensor",
    "rms_norm(Tensor x, Tensor weight, float eps) -> Tensor",
    "qkv_page_write(Tensor q, Tensor k, Tensor v, Tensor q_weight, Tensor k_weight, Tensor rope, "
    "Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor page_ids, float eps, "
    "Tensor(c!)? unroped_pages=None, Tensor? unroped_ids=None) -> Tensor",
    "rope_shift(Tensor unroped_pages, Tensor source_ids, Tensor(a!) k_pages, Tensor target_ids, Tensor rope) "
    "-> ()",
    # One schema cannot return one or two tensors: `lse` is empty when it is not asked for.
    "paged_attention(Tensor q, Tensor k_pages, Tensor v_pages, Tensor page_table, Tensor page_lengths, "
    "float scale, bool return_lse) -> (Tensor out, Tensor lse)",
)


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    return selected.of(x).layer_norm_modulate(x, shift, scale, eps)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    return selected.of(x).gate_residual(x, y, gate)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return selected.of(x).rms_norm(x, weight, eps)


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
) -> Tensor:
    checks.qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids
    )
    return selected.of(q).qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids
    )


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)
    selected.of(k_pages).rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    return selected.of(q).paged_attention(q, k_pages, v_pages, page_table, page_lengths, scale, return_lse)


def _layer_norm_modulate_fake(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    return x.new_empty(x.shape)


def _gate_residual_fake(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    return x.new_empty(x.shape)


def _rms_norm_fake(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return x.new_empty(x.shape)


def _qkv_page_write_fake(
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
) -> Tensor:
    checks.qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids
    )
    return q.new_empty((*q.shape[:2], *k_pages.shape[2:]))


def _rope_shift_fake(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)


def _paged_attention_fake(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float,
    return_lse: bool,
) -> tuple[Tensor, Tensor]:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    lse = q.new_empty(q.shape[:3] if return_lse else (0,), dtype=torch.float32)
    return q.new_empty(q.shape), lse


_IMPLEMENTATIONS = {
    "layer_norm_modulate": (layer_norm_modulate, _layer_norm_modulate_fake),
    "gate_residual": (gate_residual, _gate_residual_fake),
    "rms_norm": (rms_norm, _rms_norm_fake),
    "qkv_page_write": (qkv_page_write, _qkv_page_write_fake),
    "rope_shift": (rope_shift, _rope_shift_fake),
    "paged_attention": (paged_attention, _paged_attention_fake),
}


def _register() -> torch.library.Library:
    library = torch.library.Library("wavecore", "DEF")
    for schema in SCHEMAS:
        library.define(schema)
    for name, (implementation, fake) in _IMPLEMENTATIONS.items():
        for key in ("CPU", "CUDA"):
            library.impl(name, implementation, key)
        torch.library.register_fake(f"wavecore::{name}", fake, lib=library)
    return library


# The registration lives as long as this object.
LIBRARY = _register()
