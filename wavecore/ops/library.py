"""Registration of `torch.ops.wavecore.*`: schemas, implementations, fake implementations.

A call goes to the module that `wavecore.ops.backend` chose for the device of the first argument; that module
checks the arguments. The fake implementations check them too, and promise contiguous results, which every
backend keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wavecore.ops import checks
from wavecore.ops.backend import selected

_ATTENTION = "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor page_table, Tensor page_lengths, float scale)"
SCHEMAS = {
    "layer_norm_modulate": "(Tensor x, Tensor shift, Tensor scale, float eps) -> Tensor",
    "gate_residual": "(Tensor x, Tensor y, Tensor gate) -> Tensor",
    "rms_norm": "(Tensor x, Tensor weight, float eps) -> Tensor",
    "qkv_page_write": "(Tensor q, Tensor k, Tensor v, Tensor q_weight, Tensor k_weight, Tensor rope, "
    "Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor page_ids, float eps, "
    "Tensor(c!)? unroped_pages=None, Tensor? unroped_ids=None) -> Tensor",
    "rope_shift": "(Tensor unroped_pages, Tensor source_ids, Tensor(a!) k_pages, Tensor target_ids, "
    "Tensor rope) -> ()",
    "paged_attention": f"{_ATTENTION} -> Tensor",
    "paged_attention.lse": f"{_ATTENTION} -> (Tensor out, Tensor lse)",
}


def _implementation(schema: str) -> Callable[..., Any]:
    """What runs an operation: the function of its name (a dot is an underscore) of the chosen backend."""
    name = schema.replace(".", "_")

    def run(first: Tensor, *rest: Any) -> Any:
        return getattr(selected.of(first), name)(first, *rest)

    return run


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
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    return q.new_empty(q.shape)


def _paged_attention_lse_fake(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out = _paged_attention_fake(q, k_pages, v_pages, page_table, page_lengths, scale)
    return out, q.new_empty(q.shape[:3], dtype=torch.float32)


_FAKES: dict[str, Callable[..., Any]] = {
    "layer_norm_modulate": _layer_norm_modulate_fake,
    "gate_residual": _gate_residual_fake,
    "rms_norm": _rms_norm_fake,
    "qkv_page_write": _qkv_page_write_fake,
    "rope_shift": _rope_shift_fake,
    "paged_attention": _paged_attention_fake,
    "paged_attention.lse": _paged_attention_lse_fake,
}


def _register() -> torch.library.Library:
    library = torch.library.Library("wavecore", "DEF")
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
        for key in ("CPU", "CUDA"):
            library.impl(name, _implementation(name), key)
        torch.library.register_fake(f"wavecore::{name}", _FAKES[name], lib=library)
    return library


# The registration lives as long as this object.
LIBRARY = _register()
