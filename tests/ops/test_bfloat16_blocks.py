"""Sizes around the blocks that kernels on matrix units work in, in bfloat16.

Those kernels take 32 rows at a time, keys of a page in groups of 32, and 16 groups for a block. Their int8
layer takes 32 channels at a time, and inputs and tokens in parts.
"""

from __future__ import annotations

import pytest
import torch
from support.ops import Context, assert_accurate, error

from wavecore import ops
from wavecore.ops import eager, reference, reference_int8

# Valid tokens of each page of each slot, and tokens of a page.
CONTEXTS = [
    ([[1]], 1),
    ([[31]], 40),
    ([[32]], 32),
    ([[33]], 33),
    ([[511]], 512),
    ([[512]], 512),
    ([[513]], 520),
    ([[1100]], 1100),
    ([[600, 0, 33, 570], [1, 600, 0, 0], [0, 0, 0, 0]], 600),
    ([[5] * 40 + [3]], 5),
]


def context(lengths: list[list[int]], page_tokens: int, **changes: int) -> Context:
    sizes = {"tokens": 37, "heads": 2, "head_dim": 48, **changes}
    return Context(lengths, page_tokens=page_tokens, dtype=torch.bfloat16, **sizes)


def check(context: Context, scale: float) -> None:
    out, lse = ops.paged_attention(*context.arguments(), scale=scale, return_lse=True)
    exact, exact_lse = reference.paged_attention_lse(*context.arguments(torch.float32), scale)
    assert_accurate(out, exact, eager.paged_attention(*context.arguments(), scale))
    assert error(lse, exact_lse) <= 1e-4


@pytest.mark.parametrize(("lengths", "page_tokens"), CONTEXTS)
def test_attention(backend: str, lengths: list[list[int]], page_tokens: int) -> None:
    check(context(lengths, page_tokens), 48**-0.5)


@pytest.mark.parametrize("tokens", [1, 31, 32, 33, 200])
def test_attention_of_every_number_of_queries(backend: str, tokens: int) -> None:
    check(context([[70, 9]], 70, tokens=tokens), 48**-0.5)


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3])
def test_attention_at_every_scale(backend: str, scale: float) -> None:
    """A negative scale turns the order of the scores around, those of missing keys included."""
    check(context([[33, 20]], 33), scale)


def test_attention_with_rising_scores(backend: str) -> None:
    """Every block of keys raises the maximum, and what came before decays."""
    rising = context([[600, 600, 100]], 600, head_dim=64)
    for index, page in enumerate(rising.page_table[0].tolist()):
        ramp = torch.linspace(0, 1, 600, dtype=torch.bfloat16)[:, None, None]
        rising.k_pages[page] += (ramp + index) * rising.q[0, 0]
    check(rising, 0.125)


def test_attention_reads_any_stride(backend: str) -> None:
    plain = context([[40, 33]], 40)
    q, k_pages, v_pages, *rest = plain.arguments()
    exact = ops.paged_attention(q, k_pages, v_pages, *rest)
    strided = torch.cat((q, q, q), -1)[..., 48:96]
    head_major = k_pages.transpose(1, 2).contiguous().transpose(1, 2)
    slab = torch.full((len(v_pages), 3, *v_pages.shape[1:]), torch.nan, dtype=torch.bfloat16)
    slab[:, 1] = v_pages
    assert torch.equal(ops.paged_attention(strided, head_major, slab[:, 1], *rest), exact)


@pytest.mark.parametrize(("lengths", "page_tokens"), CONTEXTS)
def test_int8_attention(backend: str, lengths: list[list[int]], page_tokens: int) -> None:
    low = context(lengths, page_tokens)
    q, k_pages, values, table, counts = low.arguments()
    keys = ops.empty_key_pages(*k_pages.shape)
    valid = table >= 0
    ops.quantize_key_pages(k_pages, table[valid], counts[valid], keys)
    out, lse = ops.paged_attention_int8(q, keys, values, table, counts, return_lse=True)
    exact, exact_lse = reference_int8.paged_attention_int8_lse(
        q.float(), *keys, values.float(), table, counts, 48**-0.5
    )
    if backend == "torch":  # takes the query as it is
        assert error(out, exact) <= 0.06 * exact.abs().max()
    else:
        unit = torch.finfo(torch.bfloat16).eps
        assert error(out, exact) <= 4 * unit * max(1.0, exact.abs().max().item())
        assert error(lse, exact_lse) <= 1e-4


@pytest.mark.parametrize(
    ("rows", "inputs", "outputs"),
    [(1, 64, 16), (31, 63, 31), (32, 64, 32), (33, 65, 33), (40, 2048, 48), (40, 2049, 48), (600, 4300, 70)],
)
def test_int8_linear(backend: str, rows: int, inputs: int, outputs: int) -> None:
    weight, bias = ops.pack_int8(torch.randn(outputs, inputs) * inputs**-0.5), torch.randn(outputs)
    tokens = ops.quantize_tokens(torch.randn(rows, inputs))
    residual = torch.randn(rows, outputs).bfloat16()
    for added in (None, residual):
        exact = reference_int8.int8_linear(
            *tokens, *weight, bias, None if added is None else added.float(), None, torch.float32
        )
        actual = ops.int8_linear(tokens, weight, bias, residual=added, dtype=torch.bfloat16)
        assert_accurate(actual, exact, exact.bfloat16())


@pytest.mark.parametrize("outputs", [2080, 2100])
def test_int8_linear_of_a_large_result(backend: str, outputs: int) -> None:
    """Results that no cache holds are written past the caches, where they fill whole lines."""
    weight, tokens = ops.pack_int8(torch.randn(outputs, 8)), ops.quantize_tokens(torch.randn(2050, 8))
    exact = reference_int8.int8_linear(*tokens, *weight, None, None, None, torch.float32)
    actual = ops.int8_linear(tokens, weight, dtype=torch.bfloat16)
    assert_accurate(actual, exact, exact.bfloat16())
