from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, PageWrite, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import eager, reference

PAGES = ("k_pages", "v_pages", "unroped_pages", "peer_k_pages", "peer_v_pages")


def check(case: PageWrite) -> None:
    """Queries and all pages are accurate, rows that nothing was written to stay poisoned."""
    ours, exact, plain = case.copy(), case.copy(torch.float32), case.copy()
    q = ops.qkv_page_write(**ours)
    exact_q = reference.qkv_page_write(**exact)
    plain_q = eager.qkv_page_write(**plain)
    assert q.shape == exact_q.shape
    assert_accurate(q, exact_q, plain_q)
    for name in PAGES:
        if exact[name] is not None:
            written = ~exact[name].isnan()
            assert torch.equal(ours[name].isnan(), ~written), name
            assert_accurate(ours[name][written], exact[name][written], plain[name][written])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("heads", "head_dim"), [(4, 24), (6, 32), (4, 48), (2, 128), (3, 2), (1, 6), (2, 256)]
)
def test_matches_the_reference(backend: str, dtype: torch.dtype, heads: int, head_dim: int) -> None:
    check(PageWrite(heads=heads, head_dim=head_dim, dtype=dtype))


@pytest.mark.parametrize("tokens", [0, 1, 11, 12, 13, 24])
@pytest.mark.parametrize("others", [False, True])
def test_tokens_around_the_size_of_a_page(backend: str, tokens: int, others: bool) -> None:
    check(PageWrite(tokens=tokens, page_tokens=12, unroped=others, peer=others))


@pytest.mark.parametrize("peer", [False, True])
def test_a_peer_or_unroped_keys_alone(backend: str, peer: bool) -> None:
    check(PageWrite(unroped=not peer, peer=peer))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("offset", [0, 1])
def test_results_beyond_the_caches(backend: str, dtype: torch.dtype, offset: int) -> None:
    """Kernels may store many results otherwise than few; the same numbers in parts are the same bits."""
    half = 360 * 4 // dtype.itemsize
    case = PageWrite(1, 2 * half, 32, 64, half, dtype, unroped=False, peer=False)
    pages = case.arguments["k_pages"]
    case.arguments["k_pages"] = pages.new_full((pages.numel() + offset,), torch.nan)[offset:].view(
        pages.shape
    )
    whole, parts = case.copy(), case.copy()
    q = ops.qkv_page_write(**whole | {"k_pages": case.arguments["k_pages"]})
    for part in (slice(None, half), slice(half, None)):
        taken = {name: parts[name][:, part] for name in ("q", "k", "v", "rope")}
        ids = parts["page_ids"][:, :1] if part.start is None else parts["page_ids"][:, 1:]
        assert torch.equal(q[:, part], ops.qkv_page_write(**parts | taken | {"page_ids": ids}))
    assert torch.equal(case.arguments["k_pages"].nan_to_num(7.0), parts["k_pages"].nan_to_num(7.0))
    assert torch.equal(whole["v_pages"].nan_to_num(7.0), parts["v_pages"].nan_to_num(7.0))


def test_no_slots(backend: str) -> None:
    check(PageWrite(slots=0))


def test_pages_without_an_id_are_not_written(backend: str) -> None:
    case = PageWrite()
    case.arguments["page_ids"][0, 1] = -1
    case.arguments["page_ids"][2, :] = -1
    case.arguments["unroped_ids"][1, :] = -1
    case.arguments["peer_ids"][0, 0] = -1
    case.arguments["peer_ids"][1, :] = -1
    check(case)
    case.arguments["page_ids"][:] = -1
    check(case)


def test_a_peer_gets_what_the_own_pages_get(backend: str) -> None:
    case = PageWrite(tokens=29, page_tokens=12)
    ops.qkv_page_write(**case.arguments)
    own, there = (case.arguments[name].flatten().long() for name in ("page_ids", "peer_ids"))
    for name in ("k_pages", "v_pages"):
        assert torch.equal(case.arguments[name][own], case.arguments[f"peer_{name}"][there])


def test_the_unused_tail_of_the_last_page_is_zero(backend: str) -> None:
    case = PageWrite(tokens=29, page_tokens=12)
    ops.qkv_page_write(**case.arguments)
    last = case.arguments["page_ids"][:, -1].long()
    for name in ("k_pages", "v_pages"):
        assert torch.equal(case.arguments[name][last, 5:], torch.zeros(3, 7, 4, 24))
    last = case.arguments["peer_ids"][:, -1].long()
    for name in ("peer_k_pages", "peer_v_pages"):
        assert torch.equal(case.arguments[name][last, 5:], torch.zeros(3, 7, 4, 24))


def test_views_of_a_fused_projection_and_of_a_larger_pool(backend: str) -> None:
    case = PageWrite()
    fused = torch.randn(3, 29, 3 * 96)
    case.arguments.update(q=fused[..., :96], k=fused[..., 96:192], v=fused[..., 192:])
    for name in PAGES:
        pages = case.arguments[name]
        larger = torch.full((len(pages), 2, *pages.shape[1:]), torch.nan)
        case.arguments[name] = larger[:, 1]
    case.arguments["page_ids"] = case.arguments["page_ids"].T.contiguous().T
    exact = case.copy()
    q = ops.qkv_page_write(**case.arguments)
    assert error(q, reference.qkv_page_write(**exact)) <= 1e-5
    for name in PAGES:
        written = ~exact[name].isnan()
        assert torch.equal(case.arguments[name].isnan(), ~written)
        assert error(case.arguments[name][written], exact[name][written]) <= 1e-5


def test_head_major_pages_and_strided_inputs(backend: str) -> None:
    case = PageWrite()
    exact = case.copy()
    for name in PAGES:
        case.arguments[name] = case.arguments[name].transpose(1, 2).contiguous().transpose(1, 2)
    for name in ("q", "k", "v"):
        case.arguments[name] = torch.stack((case.arguments[name],) * 2, dim=-1)[..., 0]
    rope = case.arguments["rope"]
    case.arguments["rope"] = rope.transpose(0, 1).contiguous().transpose(0, 1)
    q = ops.qkv_page_write(**case.arguments)
    assert error(q, reference.qkv_page_write(**exact)) <= 1e-5
    for name in PAGES:
        written = ~exact[name].isnan()
        assert error(case.arguments[name][written], exact[name][written]) <= 1e-5


@pytest.mark.parametrize(
    ("name", "pages"),
    [("page_ids", "k_pages"), ("unroped_ids", "unroped_pages"), ("peer_ids", "peer_k_pages")],
)
@pytest.mark.parametrize("beyond", [True, False])
def test_an_id_out_of_range_is_an_error_and_writes_nothing(
    host_backend: str, name: str, pages: str, beyond: bool
) -> None:
    case = PageWrite()
    count = len(case.arguments[pages])
    case.arguments[name][1, 1] = count if beyond else -2
    with pytest.raises(UsageError, match=rf"^{name}: expected page ids from -1 to {count - 1}, got"):
        ops.qkv_page_write(**case.arguments)
    assert case.arguments["k_pages"].isnan().all() or name != "page_ids"


def test_a_gradient_is_refused(backend: str) -> None:
    case = PageWrite()
    case.arguments["q"].requires_grad_()
    with pytest.raises(UsageError, match=r"^q: expected no gradient"):
        ops.qkv_page_write(**case.arguments)
    with torch.no_grad():
        ops.qkv_page_write(**case.arguments)
