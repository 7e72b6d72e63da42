"""Wrong arguments: one line that names the argument, what was expected and what was got."""

from __future__ import annotations

import copy

import pytest
import torch
from support.ops import Context, PageWrite, rope_table

from wavecore import ops
from wavecore.errors import UsageError

X = torch.randn(2, 6, 8)
M = torch.randn(2, 3, 8)
HALF = torch.bfloat16


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X[0], M, M), "x: expected [s, t, D], got [6, 8]"),
        ((X.double(), M, M), "x: expected float32, bfloat16 or float16, got torch.float64"),
        ((X.int(), M, M), "x: expected float32, bfloat16 or float16, got torch.int32"),
        ((X, M[:1], M), "shift: expected [s, f, D] = [2, f, 8], got [1, 3, 8]"),
        ((X, M[..., :4], M), "shift: expected [s, f, D] = [2, f, 8], got [2, 3, 4]"),
        ((X, M, torch.randn(2, 4, 8)), "scale: expected f to divide the 6 tokens of a slot, got f = 4"),
        ((X, M[:, :0], M), "shift: expected f to divide the 6 tokens of a slot, got f = 0"),
        ((X, M, M[:, :1]), "scale: expected the shape of shift = [2, 3, 8], got [2, 1, 8]"),
        ((X, M.half(), M), "shift: expected torch.float32 as x, or torch.float32, got torch.float16"),
        ((X.half(), M.half(), M), "scale: expected torch.float16 as shift, got torch.float32"),
        ((X, M.to("meta"), M), "shift: expected device cpu as x, got meta"),
    ],
)
def test_layer_norm_modulate(backend: str, arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.layer_norm_modulate(*arguments, 1e-6)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((X, X[:, :3], M), "y: expected the shape of x = [2, 6, 8], got [2, 3, 8]"),
        ((X, X.half(), M), "y: expected torch.float32 as x, got torch.float16"),
        ((X, X, M[..., 0]), "gate: expected [s, f, D] = [2, f, 8], got [2, 3]"),
        ((X, X.to("meta"), M), "y: expected device cpu as x, got meta"),
    ],
)
def test_gate_residual(backend: str, arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.gate_residual(*arguments)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((torch.tensor(1.0), X[0, 0]), "x: expected [..., D], got []"),
        ((X, torch.randn(7)), "weight: expected [D] = [8], got [7]"),
        ((X, torch.randn(8, 1)), "weight: expected [D] = [8], got [8, 1]"),
        (
            (X.to(HALF), torch.randn(8).half()),
            "weight: expected torch.bfloat16 as x, or torch.float32, got torch.float16",
        ),
    ],
)
def test_rms_norm(backend: str, arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.rms_norm(*arguments, 1e-6)
    assert str(caught.value) == message


WRITE = PageWrite().arguments  # q [3, 29, 96], pages [12, 12, 4, 24]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"q": WRITE["q"][0]}, "q: expected [s, t, D], got [29, 96]"),
        ({"k": WRITE["k"][:, 1:]}, "k: expected the shape of q = [3, 29, 96], got [3, 28, 96]"),
        ({"v": WRITE["v"].half()}, "v: expected torch.float32 as q, got torch.float16"),
        ({"q_weight": torch.ones(95)}, "q_weight: expected [D] = [96], got [95]"),
        (
            {"k_pages": torch.zeros(12, 12, 4, 23)},
            "k_pages: expected [p, n, h, d] with h * d = 96 as q, got [12, 12, 4, 23]",
        ),
        (
            {"k_pages": torch.zeros(12, 0, 4, 24)},
            "k_pages: expected pages of at least one token, got [12, 0, 4, 24]",
        ),
        (
            {"k_pages": torch.zeros(12, 12, 4, 48)[..., ::2]},
            "k_pages: expected a last stride of 1, since it is written in place, got (2304, 192, 48, 2)",
        ),
        (
            {"v_pages": torch.zeros(11, 12, 4, 24)},
            "v_pages: expected the shape of k_pages = [12, 12, 4, 24], got [11, 12, 4, 24]",
        ),
        (
            {"k_pages": torch.zeros(12, 12, 32, 3), "v_pages": torch.zeros(12, 12, 32, 3)},
            "k_pages: expected an even head size, since pairs are rotated, got 3",
        ),
        (
            {"rope": rope_table(3, 29, 11)},
            "rope: expected [s, t, d // 2, 2] = [3, 29, 12, 2], got [3, 29, 11, 2]",
        ),
        ({"rope": WRITE["rope"].double()}, "rope: expected torch.float32, got torch.float64"),
        ({"page_ids": WRITE["page_ids"][:, :2]}, "page_ids: expected [s, ceil(t / n)] = [3, 3], got [3, 2]"),
        ({"page_ids": WRITE["page_ids"].long()}, "page_ids: expected torch.int32, got torch.int64"),
        ({"unroped_ids": None}, "unroped_ids: expected together with unroped_pages, got only one of them"),
        (
            {"unroped_pages": torch.zeros(2, 12, 4, 12)},
            "unroped_pages: expected [p2, n, h, d] = [p2, *[12, 4, 24]], got [2, 12, 4, 12]",
        ),
        (
            {"unroped_ids": WRITE["unroped_ids"][:2]},
            "unroped_ids: expected [s, ceil(t / n)] = [3, 3], got [2, 3]",
        ),
        (
            {"peer_ids": None},
            "peer_ids: expected together with peer_k_pages and peer_v_pages, got only some of them",
        ),
        (
            {"peer_k_pages": torch.zeros(2, 12, 4, 12)},
            "peer_k_pages: expected [p3, n, h, d] = [p3, *[12, 4, 24]], got [2, 12, 4, 12]",
        ),
        (
            {"peer_v_pages": torch.zeros(2, 12, 4, 24)},
            "peer_v_pages: expected the shape of peer_k_pages = [14, 12, 4, 24], got [2, 12, 4, 24]",
        ),
        (
            {"peer_v_pages": torch.zeros(14, 12, 4, 24).half()},
            "peer_v_pages: expected torch.float32 as q, got torch.float16",
        ),
        (
            {"peer_k_pages": torch.zeros(14, 12, 4, 48)[..., ::2]},
            "peer_k_pages: expected a last stride of 1, since it is written in place, got (2304, 192, 48, 2)",
        ),
        (
            {"peer_ids": WRITE["peer_ids"].long()},
            "peer_ids: expected torch.int32, got torch.int64",
        ),
    ],
)
def test_qkv_page_write(backend: str, changes: dict, message: str) -> None:
    arguments = copy.copy(WRITE)
    arguments.update(changes)
    with pytest.raises(UsageError) as caught:
        ops.qkv_page_write(**arguments)
    assert str(caught.value) == message
    assert arguments["v_pages"].isnan().all() or "v_pages" in changes


PAGES = torch.randn(3, 4, 2, 8)
IDS = torch.tensor([0, 1], dtype=torch.int32)
ROPE = rope_table(2, 4, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((PAGES[0], IDS, PAGES, IDS, ROPE), "unroped_pages: expected [p2, n, h, d], got [4, 2, 8]"),
        (
            (PAGES, IDS, PAGES[:, :2], IDS, ROPE),
            "k_pages: expected [p, n, h, d] = [p, *[4, 2, 8]], got [3, 2, 2, 8]",
        ),
        (
            (PAGES, IDS, PAGES.half(), IDS, ROPE),
            "k_pages: expected torch.float32 as unroped_pages, got torch.float16",
        ),
        ((PAGES, IDS[None], PAGES, IDS, ROPE), "source_ids: expected [m], got [1, 2]"),
        ((PAGES, IDS, PAGES, IDS[:1], ROPE), "target_ids: expected [m] = [2], got [1]"),
        (
            (PAGES, IDS, PAGES, IDS, ROPE[:1]),
            "rope: expected [m, n, d // 2, 2] = [2, 4, 4, 2], got [1, 4, 4, 2]",
        ),
    ],
)
def test_rope_shift(backend: str, arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.rope_shift(*arguments)
    assert str(caught.value) == message


Q, K, V, TABLE, LENGTHS = Context([[16, 3], [0, 0]]).arguments()  # q [2, 7, 3, 40], pages [6, 16, 3, 40]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((Q[0], K, V, TABLE, LENGTHS), "q: expected [s, tq, h, d], got [7, 3, 40]"),
        (
            (Q, K[:, :, :2], V, TABLE, LENGTHS),
            "k_pages: expected [p, n, h, d] with [h, d] = [3, 40] as q, got [6, 16, 2, 40]",
        ),
        (
            (Q, K, V[1:], TABLE, LENGTHS),
            "v_pages: expected the shape of k_pages = [6, 16, 3, 40], got [5, 16, 3, 40]",
        ),
        ((Q.to(HALF), K, V, TABLE, LENGTHS), "k_pages: expected torch.bfloat16 as q, got torch.float32"),
        ((Q, K, V, TABLE[:1], LENGTHS), "page_table: expected [s, m] = [2, m], got [1, 2]"),
        ((Q, K, V, TABLE.long(), LENGTHS), "page_table: expected torch.int32, got torch.int64"),
        (
            (Q, K, V, TABLE, LENGTHS[:, :1]),
            "page_lengths: expected the shape of page_table = [2, 2], got [2, 1]",
        ),
        ((Q, K.to("meta"), V, TABLE, LENGTHS), "k_pages: expected device cpu as q, got meta"),
    ],
)
def test_paged_attention(backend: str, arguments: tuple, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.paged_attention(*arguments)
    assert str(caught.value) == message
