"""The attention kernel that reads pages through tensor descriptors, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from support.interpreter import round_float8
from support.ops import Context, assert_accurate, error

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: run by test_interpreter.py", allow_module_level=True)

from wavecore import ops
from wavecore.ops import eager, reference, reference_int8
from wavecore.triton_kernels.attention_step import Scales
from wavecore.triton_kernels.paged_attention_tma import BLOCK_N, paged_attention_tma, takes_tma

LENGTHS = [[BLOCK_N + 40, 3, 0], [0, 0, 0], [2 * BLOCK_N, BLOCK_N + 7, 1]]


def context(tokens: int, head_dim: int) -> Context:
    return Context(
        LENGTHS, tokens=tokens, heads=2, head_dim=head_dim, page_tokens=2 * BLOCK_N, dtype=torch.float16
    )


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("tokens", [70, 200])
def test_matches_the_reference(head_dim: int, tokens: int) -> None:
    """Ragged pages with NaN behind their valid tokens, and slots that are not in order of length."""
    case = context(tokens, head_dim)
    arguments = case.arguments()
    assert takes_tma(*arguments[:3])
    out = torch.full_like(case.q, torch.nan)
    lse = torch.full(case.q.shape[:3], torch.nan)
    paged_attention_tma(*arguments, head_dim**-0.5, out, lse, None)
    exact, exact_lse = reference.paged_attention_lse(*case.arguments(torch.float32), head_dim**-0.5)
    assert_accurate(out, exact, eager.paged_attention(*arguments, head_dim**-0.5))
    assert error(lse, exact_lse) <= 2e-3


def test_int8_keys_match_the_reference() -> None:
    case = context(70, 64)
    q, k_pages, values, table, lengths = case.arguments()
    keys = ops.empty_key_pages(*k_pages.shape)
    reference_int8.quantize_key_pages(k_pages, table[table >= 0], lengths[table >= 0], *keys)
    assert takes_tma(q, keys.data, values)  # though scales and mean lie between the pages
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
    paged_attention_tma(q, keys.data, values, table, lengths, 0.125, out, lse, Scales(keys.scale, keys.mean))
    exact, exact_lse = reference_int8.paged_attention_int8_lse(
        q.float(), *keys, values.float(), table, lengths, 0.125
    )
    assert error(out, exact) <= 4e-3
    assert error(lse, exact_lse) <= 1e-3


def test_float8_values_match_the_reference(monkeypatch: pytest.MonkeyPatch) -> None:
    round_float8(monkeypatch)
    case = context(70, 64)
    q, k_pages, v_pages, table, lengths = case.arguments()
    keys, values = ops.empty_key_pages(*k_pages.shape), ops.empty_value_pages(*v_pages.shape)
    pages = table[table >= 0], lengths[table >= 0]
    reference_int8.quantize_key_pages(k_pages, *pages, *keys)
    reference_int8.quantize_value_pages(v_pages, *pages, *values)
    values.data[table[2, 1].item(), BLOCK_N + 7 :] = torch.nan  # behind the valid tokens
    out, lse = torch.full_like(q, torch.nan), torch.full(q.shape[:3], torch.nan)
    scales = Scales(keys.scale, keys.mean, values.scale)
    paged_attention_tma(q, keys.data, values.data, table, lengths, 0.125, out, lse, scales)
    exact, exact_lse = reference_int8.paged_attention_int8_lse(
        q.float(), *keys, values.data, table, lengths, 0.125, values.scale
    )
    assert error(out, exact) <= 0.03 * exact.abs().max().item()  # the weights are float8 too
    assert error(lse, exact_lse) <= 1e-3


def test_what_it_does_not_take() -> None:
    q, k_pages, values, *_ = context(200, 64).arguments()
    assert takes_tma(q, k_pages, values)
    assert not takes_tma(q.float(), k_pages.float(), values.float())
    assert not takes_tma(q[:, :5], k_pages, values)
    assert not takes_tma(q, k_pages[:, :32], values[:, :32])
    assert not takes_tma(q, k_pages[:0], values[:0])
    assert not takes_tma(q, k_pages.transpose(0, 1).contiguous().transpose(0, 1), values)
    assert not takes_tma(q, k_pages.transpose(1, 2).contiguous().transpose(1, 2), values)
