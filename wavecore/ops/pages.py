"""Public functions on pages of keys and values: writing, turning, attention to them.

Letters of shapes and what holds for all of them: see `wavecore.ops`.
"""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor

from wavecore.ops import gradient
from wavecore.ops.library import LIBRARY

_ops = getattr(torch.ops, LIBRARY.ns)
_qkv_page_write = _ops.qkv_page_write.default
_rope_shift = _ops.rope_shift.default
_paged_attention = _ops.paged_attention.default
_paged_attention_lse = _ops.paged_attention.lse


def qkv_page_write(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    q_weight: Tensor,
    k_weight: Tensor,
    rope: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_ids: Tensor,
    eps: float,
    unroped_pages: Tensor | None = None,
    unroped_ids: Tensor | None = None,
    peer_k_pages: Tensor | None = None,
    peer_v_pages: Tensor | None = None,
    peer_ids: Tensor | None = None,
) -> Tensor:
    """Norm and rotate queries and keys, and write keys and values into pages.

    RMS norm across all heads and interleaved rotary embedding (adjacent pairs, Wan 2.1 ``rope_apply``) of
    `q` and `k`; rotated keys and values go to the pages `page_ids`. Rows of a slot's last page that no token
    fills are zeroed. Two entries of `page_ids` that name the same page leave it undefined.

    Parameters
    ----------
    q, k, v : Tensor [s, t, D]
        Projections, before norm.
    q_weight, k_weight : Tensor [D]
        Weights of the norms, in the dtype of `q` or float32.
    rope : Tensor float32 [s, t, d // 2, 2]
        Cosine and sine of each rotation.
    k_pages, v_pages : Tensor [p, n, h, d]
        Pages, written in place; the last stride is 1.
    page_ids : Tensor int32 [s, ceil(t / n)]
        Page of each n tokens; -1 writes nothing.
    eps : float
        Added to the mean square.
    unroped_pages : Tensor [p2, n, h, d], optional
        Pages that take the normed keys before rotation, written in place.
    unroped_ids : Tensor int32 [s, ceil(t / n)], optional
        Their page ids; -1 writes nothing.
    peer_k_pages, peer_v_pages : Tensor [p3, n, h, d], optional
        Pages of another replica, which take the rotated keys and the values too: in memory shared with it,
        or on another device that this one may write to. None of them may be a page of `k_pages` or `v_pages`.
    peer_ids : Tensor int32 [s, ceil(t / n)], optional
        Page ids in the pool of the peer; -1 writes nothing there.

    Returns
    -------
    Tensor [s, t, h, d]
        Normed and rotated queries.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id outside the pages (on the CPU).
    """
    gradient.refuse(q=q, k=k, v=v, q_weight=q_weight, k_weight=k_weight)
    return _qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids,
        peer_k_pages, peer_v_pages, peer_ids,
    )  # fmt: skip


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    """Give cached keys a new position: ``k_pages[target] = rotate(unroped_pages[source])``.

    The source is always the key before rotation, so a thousand shifts equal one.

    Parameters
    ----------
    unroped_pages : Tensor [p2, n, h, d]
        Normed keys before rotation, as `qkv_page_write` stores them.
    source_ids : Tensor int32 [m]
        Pages to read.
    k_pages : Tensor [p, n, h, d]
        Pages, written in place; the last stride is 1.
    target_ids : Tensor int32 [m]
        Pages to write; -1 skips the entry.
    rope : Tensor float32 [m, n, d // 2, 2]
        Cosine and sine at the new positions.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id outside the pages (on the CPU).
    """
    gradient.refuse(unroped_pages=unroped_pages)
    _rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)


@overload
def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def paged_attention(
    q: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention of each slot's queries to the pages that its table lists.

    Parameters
    ----------
    q : Tensor [s, tq, h, d]
        Queries.
    k_pages, v_pages : Tensor [p, n, h, d]
        Keys and values.
    page_table : Tensor int32 [s, m]
        Pages in attention order.
    page_lengths : Tensor int32 [s, m]
        Valid tokens of each page, the first ones; 0 skips the page, whose id may then be -1. What lies behind
        them is never read.
    scale : float, optional
        Factor on the scores; ``1 / sqrt(d)`` when not given.
    return_lse : bool
        Also return the natural logarithm of the sum of exponentials of the scores.

    Returns
    -------
    out : Tensor [s, tq, h, d]
        0 for a slot whose context is empty.
    lse : Tensor float32 [s, tq, h]
        With `return_lse` only; -inf for a slot whose context is empty.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id or length out of range (on the CPU).
    """
    gradient.refuse(q=q, k_pages=k_pages, v_pages=v_pages)
    if scale is None:
        scale = max(1, q.shape[-1]) ** -0.5
    run = _paged_attention_lse if return_lse else _paged_attention
    return run(q, k_pages, v_pages, page_table, page_lengths, scale)
