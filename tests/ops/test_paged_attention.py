from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.ops import DTYPES, Context, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import eager, reference

RAGGED = [[16, 3, 0, 16], [0, 0, 0, 0], [1, 0, 15, 0]]


def check(context: Context, scale: float | None = None) -> None:
    """Output and log-sum-exp against float64, with and without asking for the latter."""
    used = context.head_dim**-0.5 if scale is None else scale
    out, lse = ops.paged_attention(*context.arguments(), scale=scale, return_lse=True)
    exact, exact_lse = reference.paged_attention_lse(*context.arguments(torch.float32), used)
    plain = eager.paged_attention(*context.arguments(), used)
    assert_accurate(out, exact, plain)
    assert lse.dtype == torch.float32
    assert error(lse, exact_lse) <= 1e-5 * max([1.0, *exact_lse[exact_lse.isfinite()].abs().tolist()])
    assert torch.equal(out, ops.paged_attention(*context.arguments(), scale=scale))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("head_dim", [1, 7, 24, 32, 33, 48, 64, 100, 128, 256])
def test_matches_the_reference(backend: str, dtype: torch.dtype, head_dim: int) -> None:
    check(Context(RAGGED, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("tokens", [0, 1, 5, 6, 12, 13, 48])
def test_every_number_of_queries(backend: str, tokens: int) -> None:
    check(Context(RAGGED, tokens=tokens))


@pytest.mark.parametrize("length", [0, 1, 7, 8, 15, 16, 17, 63, 64, 65, 127, 128, 129, 192, 193, 400])
def test_every_length_of_context(backend: str, length: int) -> None:
    check(Context([[length]], page_tokens=max(length, 1)))


@pytest.mark.parametrize("page_tokens", [1, 2, 48, 100])
def test_every_size_of_page(backend: str, page_tokens: int) -> None:
    check(Context([[page_tokens] * 9, [page_tokens] * 8 + [page_tokens // 2]], page_tokens=page_tokens))


def test_query_blocks(backend: str) -> None:
    check(Context([[40, 17]], tokens=500, heads=2, head_dim=16, page_tokens=40))


@pytest.mark.parametrize("scale", [0.0, 1.0, -0.3])
def test_scale(backend: str, scale: float) -> None:
    check(Context(RAGGED), scale)


def test_empty_context_is_zero_and_minus_infinity(backend: str) -> None:
    context = Context(RAGGED)
    out, lse = ops.paged_attention(*context.arguments(), return_lse=True)
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert torch.equal(lse[1], torch.full_like(lse[1], -torch.inf))


@pytest.mark.parametrize("lengths", [[], [[]], [[], []]])
def test_no_slots_and_no_pages(backend: str, lengths: list[list[int]]) -> None:
    check(Context(lengths))


def test_order_of_the_table_is_the_order_of_the_keys(backend: str) -> None:
    """The same context from pages in order, through PyTorch's own attention."""
    context = Context([[16, 16, 5]])
    q, k_pages, v_pages, table, _ = context.arguments()
    keys, values = (
        torch.cat([pages[table[0, 0]], pages[table[0, 1]], pages[table[0, 2], :5]])
        for pages in (k_pages, v_pages)
    )
    expected = F.scaled_dot_product_attention(
        q.transpose(1, 2), keys.transpose(0, 1)[None], values.transpose(0, 1)[None]
    ).transpose(1, 2)
    assert error(ops.paged_attention(*context.arguments()), expected) <= 1e-5


def test_a_page_may_be_read_twice_and_by_several_slots(backend: str) -> None:
    context = Context([[16, 16], [16, 16]])
    context.page_table[:] = context.page_table[0, 0]
    check(context)


def test_split_contexts_merge_exactly(backend: str) -> None:
    context = Context([[16, 9, 16, 2]])
    q, k_pages, v_pages, table, lengths = context.arguments()
    whole, whole_lse = ops.paged_attention(q, k_pages, v_pages, table, lengths, return_lse=True)
    parts = [
        ops.paged_attention(q, k_pages, v_pages, table[:, part], lengths[:, part], return_lse=True)
        for part in (slice(0, 1), slice(1, 4))
    ]
    lse = torch.stack([part[1] for part in parts])
    assert error(lse.logsumexp(0), whole_lse) <= 1e-5
    merged = (torch.stack([part[0] for part in parts]) * (lse - whole_lse).exp()[..., None]).sum(0)
    assert error(merged, whole) <= 1e-5


@pytest.mark.parametrize("level", [-6e4, 6e4])
def test_large_scores(backend: str, level: float) -> None:
    """Scores far beyond any finite stand-in for minus infinity still count."""
    context = Context([[16, 3]], head_dim=32)
    q, k_pages, *rest = context.arguments()
    q[..., 0], k_pages[..., 0] = 1.0, level
    k_pages[..., 1:] = 0
    out, lse = ops.paged_attention(q, k_pages, *rest, scale=1.0, return_lse=True)
    exact, exact_lse = reference.paged_attention_lse(q, k_pages, *rest, 1.0)
    assert error(out, exact) <= 1e-5
    assert error(lse, exact_lse) <= 0.02  # the spacing of float32 at 6e4 is 0.004


@pytest.mark.parametrize(
    ("rise", "dtype"),
    [(rise, dtype) for rise in (1, -3, 8) for dtype in (torch.float32, torch.bfloat16)]
    + [(100, torch.bfloat16)],
    ids=str,
)
def test_scores_that_rise(backend: str, rise: float, dtype: torch.dtype) -> None:
    """The running maximum grows with every block of keys, by little or beyond what a weight can be."""
    context = Context([[256, 256, 200]], page_tokens=256, head_dim=16, dtype=dtype)
    q, k_pages, _, table, _ = context.arguments()
    for index, page in enumerate(table[0].tolist()):
        k_pages[page] += rise * (torch.linspace(0, 1, 256).to(dtype)[:, None, None] + index) * q[0, 0]
    check(context)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_several_blocks_of_keys_and_of_queries(backend: str, dtype: torch.dtype) -> None:
    check(Context([[600, 140], [5, 0]], tokens=101, heads=2, head_dim=128, page_tokens=600, dtype=dtype))


def test_every_layout(backend: str) -> None:
    context = Context(RAGGED)
    q, k_pages, v_pages, table, lengths = context.arguments()
    exact = reference.paged_attention(q, k_pages, v_pages, table, lengths, 40**-0.5)
    head_major = k_pages.transpose(1, 2).contiguous().transpose(1, 2)
    slab = torch.full((len(v_pages), 3, *v_pages.shape[1:]), torch.nan)
    slab[:, 1] = v_pages
    transposed = v_pages.mT.contiguous().mT
    strided = torch.stack((q, q), -1)[..., 1]
    for keys, values in ((head_major, slab[:, 1]), (k_pages, transposed)):
        out = ops.paged_attention(strided, keys, values, table.T.contiguous().T, lengths)
        assert_accurate(out, exact, exact)
    fused = torch.cat((q, q, q), -1)[..., 40:80]
    assert error(ops.paged_attention(fused, k_pages, v_pages, table, lengths), exact) <= 1e-5


def test_offsets_beyond_32_bits(backend: str) -> None:
    """A page stride of more than 2^31 elements, on storage that the system maps lazily."""
    stride = 2**31 + 8
    lazy = torch.from_numpy(np.zeros(stride + 64, dtype=np.int16)).view(torch.bfloat16)
    pages = lazy.as_strided((2, 4, 1, 8), (stride, 8, 8, 1))
    pages[1] = torch.randn(4, 1, 8)
    table, lengths = torch.tensor([[1]], dtype=torch.int32), torch.tensor([[4]], dtype=torch.int32)
    q = torch.randn(1, 3, 1, 8, dtype=torch.bfloat16)
    out = ops.paged_attention(q, pages, pages, table, lengths)
    near = pages[1:].clone()
    assert error(out, ops.paged_attention(q, near, near, table - 1, lengths)) == 0


def test_inputs_are_read_anew_at_every_call(backend: str) -> None:
    context = Context([[16]])
    first = ops.paged_attention(*context.arguments())
    context.v_pages.mul_(2)
    assert error(ops.paged_attention(*context.arguments()), first * 2) <= 1e-5


@pytest.mark.parametrize("value", [-1, 5, -2, 2**31 - 1])
def test_a_page_id_out_of_range_is_an_error(host_backend: str, value: int) -> None:
    context = Context([[16, 16, 16]])
    context.page_table[0, 1] = value
    expected = f"^page_table: expected page ids from 0 to 4 where the length is not 0, got {value}$"
    with pytest.raises(UsageError, match=expected):
        ops.paged_attention(*context.arguments())


@pytest.mark.parametrize("value", [-1, 17])
def test_a_length_out_of_range_is_an_error(host_backend: str, value: int) -> None:
    context = Context([[16, 16, 16]])
    context.page_lengths[0, 2] = value
    with pytest.raises(UsageError, match=f"^page_lengths: expected lengths from 0 to 16, got {value}$"):
        ops.paged_attention(*context.arguments())
