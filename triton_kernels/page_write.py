"""RMS norm across all heads, interleaved rotary embedding and page write; rotation of cached keys.

One program handles one token: its query, key and value rows are read once, normed and rotated in registers
and stored where they belong. Pairs that rotate together are the two columns of a [D / 2, 2] view of the row.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from .launch import OPTIONS, VARIES_IN_ALIGNMENT, dense_rows, on_device, warps


@triton.jit
def _normed_pairs(row, weight, columns, mask, dim, eps, PAIRS: tl.constexpr):
    """Even and odd elements of a row after its RMS norm."""
    x = tl.load(row + columns, mask, other=0).to(tl.float32)
    factor = tl.rsqrt(tl.sum(x * x) / dim + eps)
    x = x * factor * tl.load(weight + columns, mask, other=0).to(tl.float32)
    return tl.split(tl.reshape(x, (PAIRS, 2)))


@triton.jit
def _rotate(even, odd, rope, HALF_HEAD, PAIRS: tl.constexpr):
    """The row with each pair rotated by the (cos, sin) of its place in the head."""
    place = tl.arange(0, PAIRS) % HALF_HEAD
    cos, sin = tl.load(rope + 2 * place), tl.load(rope + 2 * place + 1)
    return tl.interleave(even * cos - odd * sin, even * sin + odd * cos)


@triton.jit
def _page_pointers(pages, page, row, columns, head_dim, page_stride, token_stride, head_stride):
    heads = (columns // head_dim).to(tl.int64) * head_stride + columns % head_dim
    return pages + page.to(tl.int64) * page_stride + row * token_stride + heads


@triton.jit(do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def qkv_page_write_kernel(
    q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids,
    peer_k_pages, peer_v_pages, peer_ids, q_out,
    tokens, page_tokens, pages_per_slot, pages, unroped_count, peer_count, dim, head_dim, eps,
    q_slot, q_token, k_slot, k_token, v_slot, v_token, rope_slot, rope_token,
    k_page_stride, k_token_stride, k_head_stride,
    v_page_stride, v_token_stride, v_head_stride,
    u_page_stride, u_token_stride, u_head_stride,
    pk_page_stride, pk_token_stride, pk_head_stride,
    pv_page_stride, pv_token_stride, pv_head_stride,
    UNROPED: tl.constexpr, PEER: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    PAIRS: tl.constexpr = BLOCK // 2
    item = tl.program_id(0).to(tl.int64)
    rows = pages_per_slot * page_tokens
    slot, token = item // rows, item % rows
    entry, row = slot * pages_per_slot + token // page_tokens, token % page_tokens
    columns = tl.arange(0, BLOCK)
    page = tl.load(page_ids + entry)
    tl.device_assert((page >= -1) & (page < pages), "page_ids out of range")
    written = columns < tl.where(page >= 0, dim, 0)
    k_to = _page_pointers(k_pages, page, row, columns, head_dim, k_page_stride, k_token_stride, k_head_stride)
    v_to = _page_pointers(v_pages, page, row, columns, head_dim, v_page_stride, v_token_stride, v_head_stride)
    present = token < tokens
    in_slot = columns < tl.where(present, dim, 0)  # rows past the last token read nothing, and so write zeros
    rope_row = rope + slot * rope_slot + tl.where(present, token, 0) * rope_token
    even, odd = _normed_pairs(
        k + slot * k_slot + token * k_token, k_weight, columns, in_slot, dim, eps, PAIRS
    )
    key = _rotate(even, odd, rope_row, head_dim // 2, PAIRS)
    tl.store(k_to, key, written)
    value = tl.load(v + slot * v_slot + token * v_token + columns, in_slot, other=0)
    tl.store(v_to, value, written)
    if PEER:
        peer = tl.load(peer_ids + entry)
        tl.device_assert((peer >= -1) & (peer < peer_count), "peer_ids out of range")
        sent = columns < tl.where(peer >= 0, dim, 0)
        pk_to = _page_pointers(
            peer_k_pages, peer, row, columns, head_dim, pk_page_stride, pk_token_stride, pk_head_stride
        )
        pv_to = _page_pointers(
            peer_v_pages, peer, row, columns, head_dim, pv_page_stride, pv_token_stride, pv_head_stride
        )
        tl.store(pk_to, key, sent)
        tl.store(pv_to, value, sent)
    if UNROPED:
        other = tl.load(unroped_ids + entry)
        tl.device_assert((other >= -1) & (other < unroped_count), "unroped_ids out of range")
        u_to = _page_pointers(
            unroped_pages, other, row, columns, head_dim, u_page_stride, u_token_stride, u_head_stride
        )
        tl.store(u_to, tl.interleave(even, odd), columns < tl.where(other >= 0, dim, 0))
    even, odd = _normed_pairs(
        q + slot * q_slot + token * q_token, q_weight, columns, in_slot, dim, eps, PAIRS
    )
    q_row = q_out + (slot * tokens + token) * dim
    tl.store(q_row + columns, _rotate(even, odd, rope_row, head_dim // 2, PAIRS), in_slot)


@triton.jit(do_not_specialize_on_alignment=VARIES_IN_ALIGNMENT)
def rope_shift_kernel(
    source, source_ids, target, target_ids, rope,
    page_tokens, sources, targets, dim, head_dim, rope_page, rope_token,
    s_page_stride, s_token_stride, s_head_stride,
    t_page_stride, t_token_stride, t_head_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    PAIRS: tl.constexpr = BLOCK // 2
    item = tl.program_id(0).to(tl.int64)
    entry, row = item // page_tokens, item % page_tokens
    columns = tl.arange(0, BLOCK)
    to, of = tl.load(target_ids + entry), tl.load(source_ids + entry)
    tl.device_assert((to >= -1) & (to < targets), "target_ids out of range")
    tl.device_assert((to < 0) | ((of >= 0) & (of < sources)), "source_ids out of range")
    mask = columns < tl.where(to >= 0, dim, 0)
    pointers = _page_pointers(
        source, of, row, columns, head_dim, s_page_stride, s_token_stride, s_head_stride
    )
    x = tl.load(pointers, mask, other=0).to(tl.float32)
    even, odd = tl.split(tl.reshape(x, (PAIRS, 2)))
    rope_row = rope + entry * rope_page + row * rope_token
    pointers = _page_pointers(
        target, to, row, columns, head_dim, t_page_stride, t_token_stride, t_head_stride
    )
    tl.store(pointers, _rotate(even, odd, rope_row, head_dim // 2, PAIRS), mask)


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
    """Norm and rotate q and k [s, t, D], write k and v into pages [p, n, h, d]; returns q [s, t, h, d]."""
    slots, tokens, dim = q.shape
    page_tokens, heads, head_dim = k_pages.shape[1:]
    q_out = q.new_empty((slots, tokens, heads, head_dim))
    if q_out.numel() == 0:
        return q_out
    q, k, v, rope = dense_rows(q), dense_rows(k), dense_rows(v), rope.contiguous()
    page_ids = page_ids.contiguous()
    # Without un-roped keys or a peer the kernel gets other pointers in their place and does not use them.
    extra_pages = k_pages if unroped_pages is None else unroped_pages
    extra_ids = page_ids if unroped_ids is None else unroped_ids.contiguous()
    peer_k = k_pages if peer_k_pages is None else peer_k_pages
    peer_v = v_pages if peer_v_pages is None else peer_v_pages
    peer_table = page_ids if peer_ids is None else peer_ids.contiguous()
    block = triton.next_power_of_2(dim)
    with on_device(q):
        qkv_page_write_kernel[(slots * page_ids.shape[1] * page_tokens,)](
            q, k, v, q_weight.contiguous(), k_weight.contiguous(), rope, k_pages, v_pages, page_ids,
            extra_pages, extra_ids, peer_k, peer_v, peer_table, q_out,
            tokens, page_tokens, page_ids.shape[1], k_pages.shape[0], extra_pages.shape[0], peer_k.shape[0],
            dim, head_dim, eps,
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
            rope.stride(0), rope.stride(1),
            *k_pages.stride()[:3], *v_pages.stride()[:3], *extra_pages.stride()[:3],
            *peer_k.stride()[:3], *peer_v.stride()[:3],
            UNROPED=unroped_pages is not None, PEER=peer_ids is not None,
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
    return q_out


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    """k_pages[target] = rotate(unroped_pages[source]), both [p, n, h, d]."""
    page_tokens, heads, head_dim = k_pages.shape[1:]
    entries = source_ids.shape[0]
    if entries == 0 or heads * head_dim == 0:
        return
    source, rope = dense_rows(unroped_pages), rope.contiguous()
    block = triton.next_power_of_2(heads * head_dim)
    with on_device(k_pages):
        rope_shift_kernel[(entries * page_tokens,)](
            source, source_ids.contiguous(), k_pages, target_ids.contiguous(), rope,
            page_tokens, source.shape[0], k_pages.shape[0], heads * head_dim, head_dim,
            rope.stride(0), rope.stride(1), *source.stride()[:3], *k_pages.stride()[:3],
            BLOCK=block, num_warps=warps(block), **OPTIONS,
        )  # fmt: skip
