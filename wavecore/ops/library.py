"""Registration of `torch.ops.wavecore.*`: schemas, implementations, fake implementations.

A call goes to the module that `wavecore.ops.backend` chose for the device of the first argument; that module
checks the arguments. The fake implementations check them too, and promise contiguous results, which every
backend keeps.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from wavecore.ops import fakes
from wavecore.ops.backend import selected
from wavecore.ops.composite import complete

_ATTENTION = "(Tensor q, Tensor k_pages, Tensor v_pages, Tensor page_table, Tensor page_lengths, float scale)"
_INT8_ATTENTION = (
    "(Tensor q, Tensor k_data, Tensor k_scale, Tensor k_mean, Tensor v_pages, Tensor page_table, "
    "Tensor page_lengths, float scale, Tensor? v_scale=None)"
)
SCHEMAS = {
    "layer_norm_modulate": "(Tensor x, Tensor shift, Tensor scale, float eps) -> Tensor",
    "gate_residual": "(Tensor x, Tensor y, Tensor gate) -> Tensor",
    "rms_norm": "(Tensor x, Tensor weight, float eps) -> Tensor",
    "qkv_page_write": "(Tensor q, Tensor k, Tensor v, Tensor q_weight, Tensor k_weight, Tensor rope, "
    "Tensor(a!) k_pages, Tensor(b!) v_pages, Tensor page_ids, float eps, "
    "Tensor(c!)? unroped_pages=None, Tensor? unroped_ids=None, Tensor(d!)? peer_k_pages=None, "
    "Tensor(e!)? peer_v_pages=None, Tensor? peer_ids=None) -> Tensor",
    "rope_shift": "(Tensor unroped_pages, Tensor source_ids, Tensor(a!) k_pages, Tensor target_ids, "
    "Tensor rope) -> ()",
    "paged_attention": f"{_ATTENTION} -> Tensor",
    "paged_attention.lse": f"{_ATTENTION} -> (Tensor out, Tensor lse)",
    "linear": "(Tensor x, Tensor weight, Tensor? bias, bool gelu, Tensor? residual, Tensor? gate) -> Tensor",
    "gelu": "(Tensor x) -> Tensor",
    "renoise_step": "(Tensor x, Tensor velocity, Tensor noise, Tensor sigma, Tensor next_sigma) "
    "-> (Tensor x0, Tensor noised)",
    "quantize_tokens": "(Tensor x, bool gelu) -> (Tensor data, Tensor scale)",
    "layer_norm_modulate_quantize": "(Tensor x, Tensor shift, Tensor scale, float eps) "
    "-> (Tensor data, Tensor token_scale)",
    "int8_linear": "(Tensor tokens, Tensor token_scale, Tensor weight, Tensor channel_scale, Tensor? bias, "
    "Tensor? residual, Tensor? gate, ScalarType dtype) -> Tensor",
    "quantize_key_pages": "(Tensor k_pages, Tensor page_ids, Tensor page_lengths, Tensor(a!) data, "
    "Tensor(b!) scale, Tensor(c!) mean) -> ()",
    "quantize_value_pages": "(Tensor v_pages, Tensor page_ids, Tensor page_lengths, Tensor(a!) data, "
    "Tensor(b!) scale) -> ()",
    "paged_attention_int8": f"{_INT8_ATTENTION} -> Tensor",
    "block_queries": "(Tensor x, Tensor modulation, Tensor[] weights, Tensor rope, Tensor(a!) k_pages, "
    "Tensor(b!) v_pages, Tensor page_ids, float eps, Tensor(c!)? unroped_pages=None, "
    "Tensor? unroped_ids=None) -> Tensor",
    "block_output": "(Tensor attended, Tensor x, Tensor modulation, Tensor[] weights, Tensor keys, "
    "Tensor values, float eps) -> Tensor",
    "paged_attention_int8.lse": f"{_INT8_ATTENTION} -> (Tensor out, Tensor lse)",
}


def _implementation(schema: str) -> Callable[..., Any]:
    """What runs an operation: the function of its name (a dot is an underscore) of the chosen backend."""
    name = schema.replace(".", "_")

    def run(first: Tensor, *rest: Any) -> Any:
        return getattr(selected.of(first), name)(first, *rest)

    return run


def _register() -> torch.library.Library:
    library = torch.library.Library("wavecore", "DEF")
    fake = complete(SimpleNamespace(backend="fake", **vars(fakes)))
    for name, schema in SCHEMAS.items():
        library.define(name + schema)
        for key in ("CPU", "CUDA"):
            library.impl(name, _implementation(name), key)
        torch.library.register_fake(f"wavecore::{name}", getattr(fake, name.replace(".", "_")), lib=library)
    return library


# The registration lives as long as this object.
LIBRARY = _register()
