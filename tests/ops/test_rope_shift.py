from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, assert_accurate, error, rope_table

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import eager, reference


def ids(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(4, 24), (6, 32), (2, 128), (3, 2), (1, 6)])
def test_matches_the_reference(backend: str, dtype: torch.dtype, heads: int, head_dim: int) -> None:
    source = torch.randn(5, 7, heads, head_dim, dtype=dtype)
    pages = torch.full((6, 7, heads, head_dim), torch.nan, dtype=dtype)
    rope = rope_table(3, 7, head_dim // 2)
    ours, plain, exact = pages.clone(), pages.clone(), pages.float()
    ops.rope_shift(source, ids(4, 0, 4), ours, ids(1, 5, 2), rope)
    eager.rope_shift(source, ids(4, 0, 4), plain, ids(1, 5, 2), rope)
    reference.rope_shift(source.float(), ids(4, 0, 4), exact, ids(1, 5, 2), rope)
    assert ours[[0, 3, 4]].isnan().all()
    assert_accurate(ours[[1, 2, 5]], exact[[1, 2, 5]], plain[[1, 2, 5]])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_thousand_shifts_equal_one(backend: str, dtype: torch.dtype) -> None:
    source = torch.randn(2, 5, 2, 16, dtype=dtype)
    pages, once = torch.empty(2, 2, 5, 2, 16, dtype=dtype)
    for _ in range(1000):
        rope = rope_table(1, 5, 8)
        ops.rope_shift(source, ids(1), pages, ids(0), rope)
    ops.rope_shift(source, ids(1), once, ids(0), rope)
    assert torch.equal(pages[0], once[0])


def test_a_shift_equals_writing_at_the_new_position(backend: str) -> None:
    k = torch.randn(1, 6, 2 * 12)
    weight = torch.randn(24)
    first, second = rope_table(2, 1, 6, 6)
    pages = torch.empty(4, 6, 2, 12)
    written, unroped = pages.clone(), pages.clone()
    table = ids(3)[None]
    ops.qkv_page_write(
        k, k, k, weight, weight, first, written, pages.clone(), table, 1e-6, unroped, ids(1)[None]
    )
    ops.rope_shift(unroped, ids(1), pages, ids(2), second)
    ops.qkv_page_write(k, k, k, weight, weight, second, written, pages.clone(), table, 1e-6)
    assert error(pages[2], written[3]) <= 1e-6


def test_skipped_entries_and_views(backend: str) -> None:
    source = torch.randn(3, 4, 2, 8, 2)[..., 0]
    pages = torch.full((3, 2, 4, 8), torch.nan).transpose(1, 2)
    exact = pages.clone()
    rope = rope_table(4, 2, 4).transpose(0, 1)
    ops.rope_shift(source, ids(0, -1), pages, ids(2, -1), rope)
    reference.rope_shift(source, ids(0, -1), exact, ids(2, -1), rope)
    assert pages[:2].isnan().all()
    assert error(pages[2], exact[2]) <= 1e-6


def test_no_entries(backend: str) -> None:
    pages = torch.randn(2, 4, 2, 8)
    before = pages.clone()
    ops.rope_shift(pages, ids(), pages, ids(), torch.empty(0, 4, 4, 2))
    assert torch.equal(pages, before)


@pytest.mark.parametrize(
    ("source", "target", "name", "got"),
    [(3, 0, "source_ids", 3), (-1, 0, "source_ids", -1), (0, 3, "target_ids", 3), (0, -2, "target_ids", -2)],
)
def test_an_id_out_of_range_is_an_error(
    host_backend: str, source: int, target: int, name: str, got: int
) -> None:
    pages = torch.randn(3, 4, 2, 8)
    with pytest.raises(UsageError, match=f"^{name}: expected page ids from .* got {got}$"):
        ops.rope_shift(pages, ids(source), pages.clone(), ids(target), rope_table(1, 4, 4))
