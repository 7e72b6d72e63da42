"""Int8 operations, linear layers and point-wise ones beside PyTorch, as test_ops.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from shapes import SHAPES
from torch import Tensor

from wavecore import ops
from wavecore.ops import eager, eager_int8, reference, reference_int8

RESULT = "ops_int8"
EPS = 1e-6


@dataclass(frozen=True)
class Product:
    """Rows, inputs and outputs of a linear layer."""

    rows: int
    inputs: int
    outputs: int
    dtype: torch.dtype = torch.float32

    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(self.rows, self.inputs, dtype=self.dtype)
        weight = (torch.randn(self.outputs, self.inputs) * self.inputs**-0.5).to(self.dtype)
        return x, weight, torch.randn(self.outputs, dtype=self.dtype)

    @property
    def operations(self) -> float:
        return 2.0 * self.rows * self.inputs * self.outputs


PRODUCTS = {
    "sprites, projection": Product(240, 192, 192),
    "sprites, feed-forward in": Product(240, 192, 768),
    "sprites, feed-forward out": Product(240, 768, 192),
    "wan-1.3b, projection of 390 tokens": Product(390, 1536, 1536),
    "wan-1.3b, projection of 390 tokens, bfloat16": Product(390, 1536, 1536, torch.bfloat16),
    "wan-1.3b, feed-forward of 195 tokens, bfloat16": Product(195, 1536, 8960, torch.bfloat16),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_linear(name: str, record: Callable[..., None]) -> None:
    product = PRODUCTS[name]
    x, weight, bias = product.tensors()
    record(
        "linear",
        name,
        lambda: ops.linear(x, weight, bias),
        {"F.linear": lambda: F.linear(x, weight, bias)},
        reference.linear(x, weight, bias, False, None, None),
        operations=product.operations,
    )


@pytest.mark.parametrize("name", PRODUCTS)
def test_int8_linear(name: str, record: Callable[..., None]) -> None:
    product = PRODUCTS[name]
    x, weight, bias = product.tensors()
    packed = ops.pack_int8(weight)
    exact = F.linear(x.double(), weight.double(), bias.double())
    relative = (ops.int8_linear(x, packed, bias).double() - exact).norm() / exact.norm()
    assert relative <= 0.015
    tokens = reference_int8.quantize_tokens(x, False)
    record(
        "int8_linear",
        f"{name}, quantisation and bias included",
        lambda: ops.int8_linear(x, packed, bias),
        {
            "F.linear": lambda: F.linear(x, weight, bias),
            "_int_mm": lambda: eager_int8.int8_linear(
                *eager_int8.quantize_tokens(x, False), *packed, bias, None, None, x.dtype
            ),
        },
        reference_int8.int8_linear(*tokens, *packed, bias, None, None, x.dtype),
        operations=product.operations,
    )


@pytest.mark.parametrize("name", ["sprites", "wan-1.3b, one frame", "wan-1.3b, one frame, bfloat16"])
def test_gelu(name: str, record: Callable[..., None]) -> None:
    x = SHAPES[name].rows()
    record(
        "gelu",
        name,
        lambda: ops.gelu(x),
        {"F.gelu": lambda: F.gelu(x, approximate="tanh")},
        reference_int8.gelu(x),
        moved=2 * x.nbytes,
    )


@pytest.mark.parametrize("name", ["sprites", "wan-1.3b, one frame", "wan-1.3b, one frame, bfloat16"])
def test_layer_norm_modulate_quantize(name: str, record: Callable[..., None]) -> None:
    shape = SHAPES[name]
    x, modulation = shape.rows(), shape.rows(shape.frames, 6)
    arguments = (x, modulation[:, :, 0], modulation[:, :, 1], EPS)
    exact = reference_int8.layer_norm_modulate_quantize(*arguments)
    record(
        "layer_norm_modulate_quantize",
        name,
        lambda: ops.layer_norm_modulate_quantize(*arguments).data,
        {"eager": lambda: eager_int8.layer_norm_modulate_quantize(*arguments)},
        exact[0],
        moved=x.nbytes + x.numel(),
        bound=1,
    )


def test_renoise_step(record: Callable[..., None]) -> None:
    latents = [torch.randn(1, 16, 3, 60, 104) for _ in range(3)]
    levels = [torch.rand(1, 3) for _ in range(2)]
    record(
        "renoise_step",
        "wan, a chunk of three latent frames",
        lambda: ops.renoise_step(*latents, *levels)[1],
        {"eager": lambda: eager_int8.renoise_step(*latents, *levels)},
        reference_int8.renoise_step(*latents, *levels)[1],
        moved=5 * latents[0].nbytes,
    )


def test_paged_attention_int8(record: Callable[..., None]) -> None:
    shape = SHAPES["wan-1.3b, three heads, four frames of context"]
    q = shape.rows().unflatten(-1, (shape.heads, shape.head_dim))
    keys, values = shape.pages(shape.context), shape.pages(shape.context)
    table = torch.randperm(shape.context)[None].int()
    lengths = torch.full_like(table, shape.page_tokens)
    pages = ops.empty_key_pages(*keys.shape)
    ops.quantize_key_pages(keys, table[0], lengths[0], pages)
    scale = shape.head_dim**-0.5
    ready = q.transpose(1, 2).contiguous()
    k, v = (part[table[0].long()].flatten(0, 1)[None].transpose(1, 2).contiguous() for part in (keys, values))
    record(
        "paged_attention_int8",
        "wan-1.3b, three heads, four frames of context",
        lambda: ops.paged_attention_int8(q, pages, values, table, lengths),
        {
            "paged_attention": lambda: ops.paged_attention(q, keys, values, table, lengths),
            "sdpa": lambda: F.scaled_dot_product_attention(ready, k, v),
        },
        eager.paged_attention(q, keys, values, table, lengths, scale),
        operations=4.0 * shape.tokens * k.shape[2] * shape.dim,
        bound=0.05,
    )
