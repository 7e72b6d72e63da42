"""Values in float8 for attention with int8 keys, and the quantisation of pages of values."""

from __future__ import annotations

import pytest
import torch
from support.interpreter import round_float8
from support.ops import DTYPES, Context, error
from torch import Tensor

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import QuantizedKeyPages, QuantizedValuePages, reference, reference_int8

RAGGED = [[16, 3, 0, 16], [0, 0, 0, 0], [1, 0, 15, 0]]


@pytest.fixture(autouse=True)
def as_a_gpu_rounds(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if backend == "triton":
        round_float8(monkeypatch)


def arguments(context: Context) -> tuple[Tensor, QuantizedKeyPages, QuantizedValuePages, Tensor, Tensor]:
    """Queries, keys and values by the selected backend, and the table."""
    keys, values = ops.empty_key_pages(*context.k_pages.shape), ops.empty_value_pages(*context.v_pages.shape)
    valid = context.page_table >= 0
    pages = context.page_table[valid], context.page_lengths[valid]
    ops.quantize_key_pages(context.k_pages, *pages, keys)
    ops.quantize_value_pages(context.v_pages, *pages, values)
    return context.q, keys, values, context.page_table, context.page_lengths


def cosine(actual: Tensor, exact: Tensor) -> float:
    return torch.cosine_similarity(actual.double().flatten(), exact.double().flatten(), dim=0).item()


def check(backend: str, context: Context) -> None:
    """Close to the reference on the same numbers, and to attention that quantises nothing."""
    q, keys, values, table, lengths = arguments(context)
    out, lse = ops.paged_attention_int8(q, keys, values, table, lengths, return_lse=True)
    scale = context.head_dim**-0.5
    exact, exact_lse = reference_int8.paged_attention_int8_lse(
        q.float(), *keys, values.data, table, lengths, scale, values.scale
    )
    whole = reference.paged_attention(*context.arguments(torch.float32), scale)
    largest = max(1.0, exact.abs().max().item() if exact.numel() else 0.0)
    if backend.startswith("native"):
        unit = torch.finfo(context.dtype).eps
        # The values are rounded to the dtype of the query, and so is the result.
        assert error(out, exact) <= (1e-5 + 4 * unit * (unit > 1e-6)) * largest
        assert error(lse, exact_lse) <= 1e-4
    else:  # the weights are float8 too, or the query is not int8
        assert error(out, exact) <= 0.06 * largest
    assert torch.equal(out, ops.paged_attention_int8(q, keys, values, table, lengths))
    if whole.any():
        assert cosine(out, whole) >= 0.9985


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [24, 33, 64, 128])
def test_matches_the_reference(backend: str, dtype: torch.dtype, head_dim: int) -> None:
    check(backend, Context(RAGGED, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("length", [0, 1, 15, 65, 193, 400])
def test_every_length_of_context(backend: str, length: int) -> None:
    check(backend, Context([[length]], page_tokens=max(length, 1)))


def test_pages_whose_values_differ_in_size(backend: str) -> None:
    context = Context([[200, 200, 77]], tokens=40, page_tokens=200, head_dim=64)
    context.v_pages *= torch.tensor([1e-3, 1.0, 300.0, 1e4, 1.0])[:, None, None, None]
    check(backend, context)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantised_pages_match_the_reference(backend: str, dtype: torch.dtype) -> None:
    context = Context([[16, 3, 9], [1, 16, 2]], head_dim=40, dtype=dtype)
    _, _, actual, table, lengths = arguments(context)
    exact = ops.empty_value_pages(*context.v_pages.shape)
    reference_int8.quantize_value_pages(context.v_pages, table[table >= 0], lengths[table >= 0], *exact)
    assert error(actual.scale, exact.scale) <= 1e-6
    assert not actual.data.float().isnan().any()
    # Neighbours in float8 are neighbours as integers, but for the sign; a quotient may lie at a tie.
    steps = (actual.data.view(torch.int8).int() - exact.data.view(torch.int8).int()).abs()
    assert steps.max() <= 1 and steps.sum() <= 0.01 * steps.numel()


def test_quantised_values_are_close_to_the_values(backend: str) -> None:
    context = Context([[16, 16]])
    _, _, (data, scale), *_ = arguments(context)
    for page in context.page_table[0].tolist():
        back = data[page].float() * scale[page, :, None]
        values = context.v_pages[page]
        # Half a step: a sixteenth of the number, or of the smallest that is normal.
        assert ((back - values).abs() <= values.abs() / 16 + scale[page, :, None] * 2**-10).all()


def test_pages_that_are_skipped_stay_and_tails_are_zero(backend: str) -> None:
    pages = ops.empty_value_pages(3, 8, 2, 16)
    for part in pages:
        part.fill_(7)
    values = torch.randn(3, 8, 2, 16)
    values[2, 5:] = torch.nan
    ids, lengths = torch.tensor([-1, 2, 0], dtype=torch.int32), torch.tensor([3, 5, 0], dtype=torch.int32)
    ops.quantize_value_pages(values, ids, lengths, pages)
    data, scale = pages.data.float(), pages.scale
    assert data[1].eq(7).all() and scale[1].eq(7).all()
    assert not data[2, 5:].any() and scale[2].gt(0).all()
    assert not data[0].any() and not scale[0].any()


def test_zeros_and_numbers_that_are_not_finite(backend: str) -> None:
    values = torch.ones(2, 4, 3, 16)
    values[0, :, 0] = 0
    values[0, 1, 1, 3], values[1, 2, 2, 5] = torch.nan, -torch.inf
    pages, ids = ops.empty_value_pages(2, 4, 3, 16), torch.tensor([0, 1], dtype=torch.int32)
    ops.quantize_value_pages(values, ids, torch.tensor([4, 4], dtype=torch.int32), pages)
    assert pages.scale.isnan().tolist() == [[False, True, False], [False, False, True]]
    assert pages.scale[0, 0] == 0 and not pages.data[0, :, 0].float().any()
    assert torch.allclose(pages.data[1, :, 0].float() * pages.scale[1, 0], torch.ones(4, 16))
    assert not pages.data.float().isnan().any()


def test_a_number_that_is_not_finite_counts_wherever_it_lies_in_a_long_page(backend: str) -> None:
    values = torch.randn(3, 200, 1, 16)
    for page, token in enumerate((0, 100, 199)):
        values[page, token, 0, 5] = torch.nan if page else torch.inf
    pages, ids = ops.empty_value_pages(3, 200, 1, 16), torch.arange(3, dtype=torch.int32)
    ops.quantize_value_pages(values, ids, torch.full_like(ids, 200), pages)
    assert pages.scale.isnan().all()


def test_empty_context_is_zero_and_minus_infinity(backend: str) -> None:
    out, lse = ops.paged_attention_int8(*arguments(Context(RAGGED)), return_lse=True)
    assert not out[1].any()
    assert torch.equal(lse[1], torch.full_like(lse[1], -torch.inf))


def test_every_layout(backend: str) -> None:
    q, keys, values, table, lengths = arguments(Context(RAGGED))
    expected = ops.paged_attention_int8(q, keys, values, table, lengths)
    moved = QuantizedValuePages(
        values.data.transpose(1, 2).contiguous().transpose(1, 2), values.scale.mT.contiguous().mT
    )
    assert error(ops.paged_attention_int8(q, keys, moved, table, lengths), expected) <= 1e-6
    context = Context(RAGGED)
    slab = torch.zeros(len(context.v_pages), 2, *context.v_pages.shape[1:], dtype=torch.float8_e4m3fn)[:, 1]
    into = QuantizedValuePages(slab, torch.zeros_like(values.scale))
    valid = table >= 0
    strided = context.v_pages.mT.contiguous().mT
    ops.quantize_value_pages(strided, context.page_table[valid], lengths[valid], into)
    plain = arguments(context)[2]
    assert torch.equal(into.data.float(), plain.data.float()) and torch.equal(into.scale, plain.scale)


def test_a_number_out_of_range_is_an_error(host_backend: str) -> None:
    values = torch.randn(5, 16, 3, 40)
    pages, ids = ops.empty_value_pages(*values.shape), torch.tensor([5], dtype=torch.int32)
    with pytest.raises(UsageError, match=r"^page_ids: expected page ids from -1 to 4, got 5$"):
        ops.quantize_value_pages(values, ids, ids, pages)
    with pytest.raises(UsageError, match=r"^page_lengths: expected lengths from 0 to 16, got 17$"):
        ops.quantize_value_pages(values, ids * 0, ids * 0 + 17, pages)


def test_a_wrong_argument_is_named(backend: str) -> None:
    q, keys, values, table, lengths = arguments(Context([[16, 16]]))
    wrong = {
        r"^v_pages.scale: expected \[p, h\] = \[4, 3\], got \[4, 2\]$": values._replace(
            scale=values.scale[:, 1:]
        ),
        r"^v_pages.data: expected torch.float8_e4m3fn, got torch.float32$": values._replace(
            data=values.data.float()
        ),
        r"^v_pages: expected torch.float32 as q, got torch.float8_e4m3fn$": values.data,
    }
    for message, pages in wrong.items():
        with pytest.raises(UsageError, match=message):
            ops.paged_attention_int8(q, keys, pages, table, lengths)
    with pytest.raises(UsageError, match=r"^out.data: expected the shape of v_pages"):
        ops.quantize_value_pages(
            torch.randn(4, 16, 3, 40), table[0], lengths[0], values._replace(data=values.data[1:])
        )
