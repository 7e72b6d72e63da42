"""Attention with int8 keys, and the quantisation of pages of keys."""

from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, Context, error
from torch import Tensor

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import QuantizedKeyPages, reference, reference_int8

RAGGED = [[16, 3, 0, 16], [0, 0, 0, 0], [1, 0, 15, 0]]


def quantized(context: Context) -> QuantizedKeyPages:
    """Keys of the context's pages, by the selected backend."""
    pages = ops.empty_key_pages(*context.k_pages.shape)
    valid = context.page_table >= 0
    ops.quantize_key_pages(context.k_pages, context.page_table[valid], context.page_lengths[valid], pages)
    return pages


def arguments(context: Context) -> tuple[Tensor, QuantizedKeyPages, Tensor, Tensor, Tensor]:
    q, _, *rest = context.arguments()
    return (q, quantized(context), *rest)


def cosine(actual: Tensor, exact: Tensor) -> float:
    return torch.cosine_similarity(actual.double().flatten(), exact.double().flatten(), dim=0).item()


def check(backend: str, context: Context) -> None:
    """Close to the reference on the same integers, and to attention that quantises nothing."""
    q, keys, values, table, lengths = arguments(context)
    out, lse = ops.paged_attention_int8(q, keys, values, table, lengths, return_lse=True)
    scale = context.head_dim**-0.5
    exact, exact_lse = reference_int8.paged_attention_int8_lse(
        q.float(), *keys, values.float(), table, lengths, scale
    )
    whole, _ = reference.paged_attention_lse(*context.arguments(torch.float32), scale)
    unit = torch.finfo(context.dtype).eps
    largest = max(1.0, exact.abs().max().item() if exact.numel() else 0.0)
    if backend == "torch":  # PyTorch's attention takes the query as it is
        assert error(out, whole) <= 0.06 * largest
    else:
        assert error(out, exact) <= (1e-5 + 4 * unit * (unit > 1e-6)) * largest
        assert error(lse, exact_lse) <= 1e-4
    assert torch.equal(out, ops.paged_attention_int8(q, keys, values, table, lengths))
    if whole.any():
        assert cosine(out, whole) >= 0.9995


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [24, 33, 64, 100, 128, 256])
def test_matches_the_reference(backend: str, dtype: torch.dtype, head_dim: int) -> None:
    check(backend, Context(RAGGED, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("tokens", [0, 1, 5, 13, 250])
def test_every_number_of_queries(backend: str, tokens: int) -> None:
    check(backend, Context(RAGGED, tokens=tokens))


@pytest.mark.parametrize("length", [0, 1, 7, 15, 63, 65, 192, 193, 400])
def test_every_length_of_context(backend: str, length: int) -> None:
    check(backend, Context([[length]], page_tokens=max(length, 1)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_blocks_of_keys_and_of_queries(backend: str, dtype: torch.dtype) -> None:
    check(
        backend,
        Context([[600, 140], [5, 0]], tokens=101, heads=2, head_dim=128, page_tokens=600, dtype=dtype),
    )


def test_keys_with_a_large_common_part(backend: str) -> None:
    """What all keys of a page have in common does not cost accuracy, though pages differ in it."""
    context = Context([[200, 200, 77]], tokens=40, page_tokens=200, head_dim=64)
    context.k_pages += torch.randn(len(context.k_pages), 1, 3, 64) * 10
    check(backend, context)


def test_channels_that_stand_out(backend: str) -> None:
    context = Context([[200, 77]], tokens=40, page_tokens=200, head_dim=64)
    context.k_pages[..., 3] += 20
    check(backend, context)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_quantised_pages_match_the_reference(backend: str, dtype: torch.dtype) -> None:
    context = Context([[16, 3, 9], [1, 16, 2]], head_dim=40, dtype=dtype)
    actual, exact = quantized(context), ops.empty_key_pages(*context.k_pages.shape)
    valid = context.page_table >= 0
    reference_int8.quantize_key_pages(
        context.k_pages, context.page_table[valid], context.page_lengths[valid], *exact
    )
    assert error(actual.mean, exact.mean) <= 1e-6
    assert error(actual.scale, exact.scale) <= 1e-6
    differing = (actual.data.int() - exact.data.int()).abs()
    assert differing.max() <= 1 and differing.sum() <= 0.01 * differing.numel()


def test_quantised_keys_are_close_to_the_keys(backend: str) -> None:
    context = Context([[16, 16]])
    data, scale, mean = quantized(context)
    for page in context.page_table[0].tolist():
        back = data[page] * scale[page, ..., None] + mean[page]
        assert ((back - context.k_pages[page]).abs() <= scale[page, ..., None] * 0.5001 + 1e-6).all()


def test_pages_that_are_skipped_stay_and_tails_are_zero(backend: str) -> None:
    pages = ops.empty_key_pages(3, 8, 2, 16)
    for part in pages:
        part.fill_(7)
    keys = torch.randn(3, 8, 2, 16)
    keys[2, 5:] = torch.nan
    ids, lengths = torch.tensor([-1, 2, 0], dtype=torch.int32), torch.tensor([3, 5, 0], dtype=torch.int32)
    ops.quantize_key_pages(keys, ids, lengths, pages)
    assert all(part[1].eq(7).all() for part in pages)
    assert not pages.data[2, 5:].any() and not pages.scale[2, 5:].any() and pages.scale[2, :5].all()
    assert all(not part[0].any() for part in pages)


def test_a_token_that_equals_the_mean_has_scale_zero(backend: str) -> None:
    keys = torch.ones(1, 4, 1, 16) * 3
    pages = ops.empty_key_pages(1, 4, 1, 16)
    one = torch.tensor([0], dtype=torch.int32)
    ops.quantize_key_pages(keys, one, one + 4, pages)
    assert not pages.scale.any() and pages.mean.eq(3).all()
    out = ops.paged_attention_int8(torch.randn(1, 2, 1, 16), pages, keys, one[None], one[None] + 4)
    assert error(out, torch.full_like(out, 3)) <= 1e-6


def test_empty_context_is_zero_and_minus_infinity(backend: str) -> None:
    out, lse = ops.paged_attention_int8(*arguments(Context(RAGGED)), return_lse=True)
    assert not out[1].any()
    assert torch.equal(lse[1], torch.full_like(lse[1], -torch.inf))


def test_every_layout(backend: str) -> None:
    q, keys, values, table, lengths = arguments(Context(RAGGED))
    expected = ops.paged_attention_int8(q, keys, values, table, lengths)
    moved = QuantizedKeyPages(
        keys.data.transpose(1, 2).contiguous().transpose(1, 2),
        keys.scale.mT.contiguous().mT,
        keys.mean.mT.contiguous().mT,
    )
    strided = torch.stack((q, q), -1)[..., 1]
    assert (
        error(ops.paged_attention_int8(strided, moved, values.mT.contiguous().mT, table, lengths), expected)
        <= 1e-6
    )
    slab = torch.zeros(len(values), 2, *values.shape[1:], dtype=torch.int8)[:, 1]
    into = QuantizedKeyPages(slab, torch.zeros_like(keys.scale), torch.zeros_like(keys.mean))
    context = Context(RAGGED)
    valid = context.page_table >= 0
    ops.quantize_key_pages(
        context.k_pages.mT.contiguous().mT, context.page_table[valid], lengths[valid], into
    )
    assert (
        error(
            into.mean[context.page_table[valid].long()],
            quantized(context).mean[context.page_table[valid].long()],
        )
        <= 1e-6
    )


def test_a_number_out_of_range_is_an_error(host_backend: str) -> None:
    q, keys, values, table, lengths = arguments(Context([[16, 16, 16]]))
    table[0, 1] = 5
    with pytest.raises(
        UsageError, match=r"^page_table: expected page ids from 0 to 4 where the length is not 0, got 5$"
    ):
        ops.paged_attention_int8(q, keys, values, table, lengths)
    ids = torch.tensor([5], dtype=torch.int32)
    with pytest.raises(UsageError, match=r"^page_ids: expected page ids from -1 to 4, got 5$"):
        ops.quantize_key_pages(values, ids, ids, keys)
    with pytest.raises(UsageError, match=r"^page_lengths: expected lengths from 0 to 16, got 17$"):
        ops.quantize_key_pages(values, ids * 0, ids * 0 + 17, keys)


def test_a_wrong_argument_is_named(backend: str) -> None:
    q, keys, values, table, lengths = arguments(Context([[16, 16]]))
    short = keys._replace(scale=keys.scale[:, 1:])
    with pytest.raises(
        UsageError, match=r"^k_pages.scale: expected \[p, n, h\] = \[4, 16, 3\], got \[4, 15, 3\]$"
    ):
        ops.paged_attention_int8(q, short, values, table, lengths)
    with pytest.raises(UsageError, match=r"^k_pages.data: expected torch.int8, got torch.float32$"):
        ops.paged_attention_int8(q, keys._replace(data=values), values, table, lengths)
    with pytest.raises(UsageError, match=r"^out.data: expected \[p, n, h, d\] = \[4, 16, 3, 40\], got"):
        ops.quantize_key_pages(values, table[0], lengths[0], keys._replace(data=keys.data[1:]))


@pytest.mark.parametrize("shape", [(16, 3, 40), (5, 1, 6), (1, 1, 2), (7, 3, 10), (64, 3, 64)], ids=str)
def test_a_page_in_one_piece(backend: str, shape: tuple[int, int, int]) -> None:
    """A copy of its bytes is the page; keys, scales and means of their own give the same bits."""
    tokens, heads, head_dim = shape
    count = ops.key_page_bytes(*shape)
    assert count % (heads * head_dim) == 0 and count % 16 == 0
    memory = torch.full((3, count), 255, dtype=torch.uint8)
    k_pages, values = torch.randn(2, 3, *shape)
    ids = torch.tensor([0, 2], dtype=torch.int32)
    lengths = torch.full_like(ids, tokens)
    pages = ops.key_pages_in(memory, *shape)
    apart = QuantizedKeyPages(
        *(torch.zeros_like(part, memory_format=torch.contiguous_format) for part in pages)
    )
    for out in (pages, apart):
        ops.quantize_key_pages(k_pages, ids, lengths, out)
    assert all(torch.equal(one[[0, 2]], other[[0, 2]]) for one, other in zip(pages, apart, strict=True))
    assert pages.scale[1].isnan().all() and pages.mean[1].isnan().all() and pages.data[1].eq(-1).all()
    memory[1] = memory[2]
    values[1] = values[2]
    q = torch.randn(1, 4, heads, head_dim)
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    out = ops.paged_attention_int8(q, pages, values, table, lengths[None])
    assert torch.equal(out, ops.paged_attention_int8(q, apart, values, 2 * table, lengths[None]))


@pytest.mark.parametrize(
    ("memory", "got"),
    [
        (torch.zeros(2, 99, dtype=torch.uint8), r"torch.uint8 \[2, 99\]"),
        (torch.zeros(2, 320, dtype=torch.int8), r"torch.int8 \[2, 320\]"),
    ],
    ids=["size", "dtype"],
)
def test_memory_that_holds_no_pages(memory: Tensor, got: str) -> None:
    with pytest.raises(UsageError, match=rf"^memory: expected torch.uint8 \[p, 144\], got {got}$"):
        ops.key_pages_in(memory, 4, 1, 16)
