"""Operations beside PyTorch, in the same run: `pytest bench/ops -o addopts=--import-mode=importlib -s`.

Each case is checked against the float64 reference before it is timed. Ours and PyTorch's code alternate in
runs of a millisecond; the table and bench/results/ops.json give lower ("quiet") and upper ("busy") quartiles.
"eager" is the PyTorch code of `wavecore.ops.eager` (for attention: gather the pages, then SDPA), "compiled"
the same under `torch.compile`, and "sdpa" is SDPA alone on keys and values that lie ready in its own layout.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore import ops
from wavecore.ops import eager, reference

sys.path.insert(0, str(Path(__file__).parent))
from shapes import ATTENTION_SHAPES, NORM_SHAPES, SHAPES

RESULT = "ops"
EPS = 1e-6


def _wan_modulated(x: Tensor, shift: Tensor, scale: Tensor, frames: int) -> Tensor:
    """Norm and modulation as the public model writes them, in float32 whatever the dtype of `x`."""
    normed = F.layer_norm(x.float(), x.shape[-1:], eps=EPS).unflatten(1, (frames, -1))
    return (normed * (1 + scale.float()[:, :, None]) + shift.float()[:, :, None]).flatten(1, 2).type_as(x)


@pytest.mark.parametrize("name", NORM_SHAPES)
def test_layer_norm_modulate(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    x = shape.rows()
    modulation = shape.rows(shape.frames, 6)
    arguments = (x, modulation[:, :, 0], modulation[:, :, 1], EPS)
    record(
        "layer_norm_modulate",
        name,
        lambda: ops.layer_norm_modulate(*arguments),
        {
            "eager": lambda: eager.layer_norm_modulate(*arguments),
            "compiled": partial(torch.compile(eager.layer_norm_modulate, dynamic=False), *arguments),
            "eager, float32 as Wan has it": lambda: _wan_modulated(*arguments[:3], shape.frames),
        },
        reference.layer_norm_modulate(*arguments),
        moved=2 * x.nbytes,
    )


@pytest.mark.parametrize("name", NORM_SHAPES)
def test_gate_residual(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    x, y = shape.rows(), shape.rows()
    gate = shape.rows(shape.frames, 6)[:, :, 2]
    record(
        "gate_residual",
        name,
        lambda: ops.gate_residual(x, y, gate),
        {
            "eager": lambda: eager.gate_residual(x, y, gate),
            "compiled": partial(torch.compile(eager.gate_residual, dynamic=False), x, y, gate),
        },
        reference.gate_residual(x, y, gate),
        moved=3 * x.nbytes,
    )


@pytest.mark.parametrize("name", NORM_SHAPES)
def test_rms_norm(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    x, weight = shape.rows(), torch.randn(shape.dim, dtype=shape.dtype)
    record(
        "rms_norm",
        name,
        lambda: ops.rms_norm(x, weight, EPS),
        {
            "eager": lambda: eager.rms_norm(x, weight, EPS),
            "compiled": partial(torch.compile(eager.rms_norm, dynamic=False), x, weight, EPS),
        },
        reference.rms_norm(x, weight, EPS),
        moved=2 * x.nbytes,
    )


@pytest.mark.parametrize("name", NORM_SHAPES)
def test_qkv_page_write(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    q, k, v = (shape.rows() for _ in range(3))
    weight = torch.randn(shape.dim, dtype=shape.dtype)
    angles = torch.randn(shape.slots, shape.tokens, shape.head_dim // 2)
    rope = torch.stack((angles.cos(), angles.sin()), -1)
    pages = shape.slots * shape.frames
    ids = torch.randperm(pages).reshape(shape.slots, shape.frames).int()
    arguments = (q, k, v, weight, weight, rope, shape.pages(pages), shape.pages(pages), ids, EPS)
    record(
        "qkv_page_write",
        name,
        lambda: ops.qkv_page_write(*arguments),
        {
            "eager": lambda: eager.qkv_page_write(*arguments),
            "compiled": partial(torch.compile(eager.qkv_page_write, dynamic=False), *arguments),
        },
        reference.qkv_page_write(*arguments),
        moved=6 * q.nbytes + rope.nbytes,
    )


@pytest.mark.parametrize("name", NORM_SHAPES)
def test_rope_shift(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    count = shape.slots * shape.frames
    source, target = shape.pages(count), shape.pages(count)
    angles = torch.randn(count, shape.page_tokens, shape.head_dim // 2)
    rope = torch.stack((angles.cos(), angles.sin()), -1)
    ids = torch.randperm(count).int()
    exact = target.clone()
    reference.rope_shift(source, ids, exact, ids, rope)

    def ours() -> Tensor:
        ops.rope_shift(source, ids, target, ids, rope)
        return target

    record(
        "rope_shift",
        name,
        ours,
        {"eager": lambda: eager.rope_shift(source, ids, target, ids, rope)},
        exact,
        moved=2 * source.nbytes + rope.nbytes,
    )


@pytest.mark.parametrize("name", ATTENTION_SHAPES)
def test_paged_attention(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    pages = shape.context * shape.slots
    q = shape.rows().unflatten(-1, (shape.heads, shape.head_dim))
    k_pages, v_pages = shape.pages(pages), shape.pages(pages)
    table = torch.randperm(pages).reshape(shape.slots, shape.context).int()
    lengths = torch.full_like(table, shape.page_tokens)
    arguments = (q, k_pages, v_pages, table, lengths)
    scale = shape.head_dim**-0.5
    ready = q.transpose(1, 2).contiguous()
    keys, values = (
        part[table.long()].flatten(1, 2).transpose(1, 2).contiguous() for part in (k_pages, v_pages)
    )
    keys_read = shape.context * shape.page_tokens
    record(
        "paged_attention",
        name,
        lambda: ops.paged_attention(*arguments),
        {
            "eager": lambda: eager.paged_attention(*arguments, scale),
            "sdpa": lambda: F.scaled_dot_product_attention(ready, keys, values),
        },
        reference.paged_attention(*arguments, scale),
        operations=4 * shape.slots * shape.tokens * keys_read * shape.dim,
    )
