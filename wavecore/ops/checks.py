"""Argument checks of the operations: one line naming the argument, what was expected and what was got.

Every backend goes through these, and so do the fake implementations; they look at shapes, dtypes and
devices only. Page ids and lengths are data: the functions at the end read them, on the CPU.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.errors import UsageError

FLOATING = (torch.float32, torch.bfloat16, torch.float16)


def _wrong(name: str, expected: str, got: object) -> UsageError:
    return UsageError(f"{name}: expected {expected}, got {got}")


def _shape(name: str, tensor: Tensor, shape: tuple[int, ...], meaning: str) -> None:
    if tensor.shape != shape:
        raise _wrong(name, f"{meaning} = {list(shape)}", list(tensor.shape))


def _rank(name: str, tensor: Tensor, rank: int, meaning: str) -> None:
    if tensor.dim() != rank:
        raise _wrong(name, meaning, list(tensor.shape))


def _floating(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in FLOATING:
        raise _wrong(name, "float32, bfloat16 or float16", tensor.dtype)


def _like(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    """Same dtype and device as the first argument."""
    if tensor.dtype != first.dtype:
        raise _wrong(name, f"{first.dtype} as {first_name}", tensor.dtype)
    _device(name, tensor, first_name, first)


def _device(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    if tensor.device != first.device:
        raise _wrong(name, f"device {first.device} as {first_name}", tensor.device)


def _parameter(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    """A weight or a modulation: the dtype of the first argument, or float32."""
    if tensor.dtype != first.dtype and tensor.dtype != torch.float32:
        raise _wrong(name, f"{first.dtype} as {first_name}, or torch.float32", tensor.dtype)
    _device(name, tensor, first_name, first)


def _int32(name: str, tensor: Tensor, first_name: str, first: Tensor) -> None:
    if tensor.dtype != torch.int32:
        raise _wrong(name, "torch.int32", tensor.dtype)
    _device(name, tensor, first_name, first)


def _modulation(name: str, tensor: Tensor, x: Tensor) -> None:
    slots, tokens, dim = x.shape
    if tensor.dim() != 3 or tensor.shape[0] != slots or tensor.shape[2] != dim:
        raise _wrong(name, f"[s, f, D] = [{slots}, f, {dim}]", list(tensor.shape))
    if tokens and (tensor.shape[1] == 0 or tokens % tensor.shape[1]):
        raise _wrong(name, f"f to divide the {tokens} tokens of a slot", f"f = {tensor.shape[1]}")
    _parameter(name, tensor, "x", x)


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor) -> None:
    """Check the arguments of `wavecore.ops.layer_norm_modulate`."""
    _rank("x", x, 3, "[s, t, D]")
    _floating("x", x)
    _modulation("shift", shift, x)
    _modulation("scale", scale, x)
    if scale.shape != shift.shape:
        raise _wrong("scale", f"the shape of shift = {list(shift.shape)}", list(scale.shape))
    if scale.dtype != shift.dtype:
        raise _wrong("scale", f"{shift.dtype} as shift", scale.dtype)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> None:
    """Check the arguments of `wavecore.ops.gate_residual`."""
    _rank("x", x, 3, "[s, t, D]")
    _floating("x", x)
    _shape("y", y, tuple(x.shape), "the shape of x")
    _like("y", y, "x", x)
    _modulation("gate", gate, x)


def rms_norm(x: Tensor, weight: Tensor) -> None:
    """Check the arguments of `wavecore.ops.rms_norm`."""
    if x.dim() == 0:
        raise _wrong("x", "[..., D]", list(x.shape))
    _floating("x", x)
    _shape("weight", weight, (x.shape[-1],), "[D]")
    _parameter("weight", weight, "x", x)


def ending(
    shape: tuple[int, ...],
    dtype: torch.dtype,
    bias: Tensor | None,
    residual: Tensor | None,
    gate: Tensor | None,
    first_name: str,
    first: Tensor,
) -> None:
    """Check bias, residual and gate of a linear layer whose result has `shape` and `dtype`."""
    if bias is not None:
        _shape("bias", bias, shape[-1:], "[outputs]")
        if bias.dtype not in (dtype, torch.float32):
            raise _wrong("bias", f"{dtype}, or torch.float32", bias.dtype)
        _device("bias", bias, first_name, first)
    if gate is not None and residual is None:
        raise UsageError("gate: expected together with residual, got only the gate")
    if residual is not None:
        _shape("residual", residual, shape, "the shape of the result")
        if residual.dtype != dtype:
            raise _wrong("residual", str(dtype), residual.dtype)
        _device("residual", residual, first_name, first)
        if gate is not None:
            _rank("residual", residual, 3, "[s, t, outputs] with a gate")
            _modulation("gate", gate, residual)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor | None, gate: Tensor | None
) -> None:
    """Check the arguments of `wavecore.ops.linear`."""
    if x.dim() == 0:
        raise _wrong("x", "[..., K]", list(x.shape))
    _floating("x", x)
    _rank("weight", weight, 2, "[outputs, inputs]")
    _shape("weight", weight, (weight.shape[0], x.shape[-1]), "[outputs, inputs]")
    _like("weight", weight, "x", x)
    ending((*x.shape[:-1], weight.shape[0]), x.dtype, bias, residual, gate, "x", x)


def _pages(name: str, pages: Tensor, first_name: str, first: Tensor) -> None:
    _rank(name, pages, 4, "[p, n, h, d]")
    if pages.shape[1] == 0:
        raise _wrong(name, "pages of at least one token", list(pages.shape))
    _like(name, pages, first_name, first)


def _written(name: str, pages: Tensor) -> None:
    if pages.stride(3) != 1 and pages.shape[3] > 1:
        raise _wrong(name, "a last stride of 1, since it is written in place", pages.stride())


def _rope(rope: Tensor, shape: tuple[int, ...], meaning: str, head_dim: int) -> None:
    if head_dim % 2:
        raise _wrong("k_pages", "an even head size, since pairs are rotated", head_dim)
    _shape("rope", rope, (*shape, head_dim // 2, 2), meaning)
    if rope.dtype != torch.float32:
        raise _wrong("rope", "torch.float32", rope.dtype)


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
    unroped_pages: Tensor | None,
    unroped_ids: Tensor | None,
    peer_k_pages: Tensor | None,
    peer_v_pages: Tensor | None,
    peer_ids: Tensor | None,
) -> None:
    """Check the arguments of `wavecore.ops.qkv_page_write`."""
    _rank("q", q, 3, "[s, t, D]")
    _floating("q", q)
    slots, tokens, dim = q.shape
    for name, tensor in (("k", k), ("v", v)):
        _shape(name, tensor, (slots, tokens, dim), "the shape of q")
        _like(name, tensor, "q", q)
    _pages("k_pages", k_pages, "q", q)
    page_tokens, heads, head_dim = k_pages.shape[1:]
    if heads * head_dim != dim:
        raise _wrong("k_pages", f"[p, n, h, d] with h * d = {dim} as q", list(k_pages.shape))
    _shape("v_pages", v_pages, tuple(k_pages.shape), "the shape of k_pages")
    _like("v_pages", v_pages, "q", q)
    _written("k_pages", k_pages)
    _written("v_pages", v_pages)
    for name, tensor in (("q_weight", q_weight), ("k_weight", k_weight)):
        _shape(name, tensor, (dim,), "[D]")
        _parameter(name, tensor, "q", q)
    _rope(rope, (slots, tokens), "[s, t, d // 2, 2]", head_dim)
    _device("rope", rope, "q", q)
    table = (slots, -(-tokens // page_tokens))
    _shape("page_ids", page_ids, table, "[s, ceil(t / n)]")
    _int32("page_ids", page_ids, "q", q)
    if (unroped_pages is None) != (unroped_ids is None):
        raise UsageError("unroped_ids: expected together with unroped_pages, got only one of them")
    if unroped_pages is not None and unroped_ids is not None:
        _pages("unroped_pages", unroped_pages, "q", q)
        _other_pages("unroped_pages", unroped_pages, k_pages, "p2")
        _shape("unroped_ids", unroped_ids, table, "[s, ceil(t / n)]")
        _int32("unroped_ids", unroped_ids, "q", q)
    peers = (peer_k_pages, peer_v_pages, peer_ids)
    if any(peer is not None for peer in peers) and any(peer is None for peer in peers):
        raise UsageError(
            "peer_ids: expected together with peer_k_pages and peer_v_pages, got only some of them"
        )
    if peer_k_pages is not None and peer_v_pages is not None and peer_ids is not None:
        for name, pages in (("peer_k_pages", peer_k_pages), ("peer_v_pages", peer_v_pages)):
            _rank(name, pages, 4, "[p, n, h, d]")
            if pages.dtype != q.dtype:
                raise _wrong(name, f"{q.dtype} as q", pages.dtype)
            if pages.device.type != q.device.type:
                raise _wrong(name, f"a device of the kind of {q.device} as q", pages.device)
            _other_pages(name, pages, k_pages, "p3")
        _shape("peer_v_pages", peer_v_pages, tuple(peer_k_pages.shape), "the shape of peer_k_pages")
        _shape("peer_ids", peer_ids, table, "[s, ceil(t / n)]")
        _int32("peer_ids", peer_ids, "q", q)


def _other_pages(name: str, pages: Tensor, k_pages: Tensor, count: str) -> None:
    """Pages beside `k_pages` that are written too: of the same page size, and any number of them."""
    if pages.shape[1:] != k_pages.shape[1:]:
        meaning = f"[{count}, n, h, d] = [{count}, *{list(k_pages.shape[1:])}]"
        raise _wrong(name, meaning, list(pages.shape))
    _written(name, pages)


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    """Check the arguments of `wavecore.ops.rope_shift`."""
    _rank("unroped_pages", unroped_pages, 4, "[p2, n, h, d]")
    _floating("unroped_pages", unroped_pages)
    _pages("k_pages", k_pages, "unroped_pages", unroped_pages)
    if k_pages.shape[1:] != unroped_pages.shape[1:]:
        raise _wrong("k_pages", f"[p, n, h, d] = [p, *{list(unroped_pages.shape[1:])}]", list(k_pages.shape))
    _written("k_pages", k_pages)
    _rank("source_ids", source_ids, 1, "[m]")
    _int32("source_ids", source_ids, "unroped_pages", unroped_pages)
    _shape("target_ids", target_ids, tuple(source_ids.shape), "[m]")
    _int32("target_ids", target_ids, "unroped_pages", unroped_pages)
    page_tokens, _, head_dim = k_pages.shape[1:]
    _rope(rope, (source_ids.shape[0], page_tokens), "[m, n, d // 2, 2]", head_dim)
    _device("rope", rope, "unroped_pages", unroped_pages)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor
) -> None:
    """Check the arguments of `wavecore.ops.paged_attention`."""
    context(q, "k_pages", k_pages, page_table, page_lengths)
    _shape("v_pages", v_pages, tuple(k_pages.shape), "the shape of k_pages")
    _like("v_pages", v_pages, "q", q)


def context(q: Tensor, name: str, pages: Tensor, page_table: Tensor, page_lengths: Tensor) -> None:
    """Check queries, the pages called `name` that they read, and the lists of these."""
    _rank("q", q, 4, "[s, tq, h, d]")
    _floating("q", q)
    _pages(name, pages, "q", q)
    if pages.shape[2:] != q.shape[2:]:
        raise _wrong(name, f"[p, n, h, d] with [h, d] = {list(q.shape[2:])} as q", list(pages.shape))
    _rank("page_table", page_table, 2, "[s, m]")
    if page_table.shape[0] != q.shape[0]:
        raise _wrong("page_table", f"[s, m] = [{q.shape[0]}, m]", list(page_table.shape))
    _int32("page_table", page_table, "q", q)
    _shape("page_lengths", page_lengths, tuple(page_table.shape), "the shape of page_table")
    _int32("page_lengths", page_lengths, "q", q)


def block(x: Tensor, modulation: Tensor) -> None:
    """Check the modulation of `wavecore.ops.block_queries` and `block_output`; their parts check the rest."""
    _rank("x", x, 3, "[s, t, D]")
    if modulation.dim() != 4 or modulation.shape[2] != 6:
        raise _wrong("modulation", "[s, f, 6, D]", list(modulation.shape))


def check_page_ids(name: str, ids: Tensor, pages: int) -> None:
    """Check that every id is -1 (skipped) or names one of `pages` pages; reads the data."""
    for value in ids.flatten().tolist():
        if not -1 <= value < pages:
            raise _wrong(name, f"page ids from -1 to {pages - 1}", value)


def check_sources(source_ids: Tensor, target_ids: Tensor, pages: int) -> None:
    """Check the ids that `rope_shift` reads, where the target is not skipped; reads the data."""
    for source, target in zip(source_ids.tolist(), target_ids.tolist(), strict=True):
        if target >= 0 and not 0 <= source < pages:
            raise _wrong("source_ids", f"page ids from 0 to {pages - 1} where the target is not -1", source)


def check_context(page_table: Tensor, page_lengths: Tensor, pages: int, page_tokens: int) -> None:
    """Check the lengths of a context and the ids of its non-empty pages; reads the data."""
    for page, length in zip(page_table.flatten().tolist(), page_lengths.flatten().tolist(), strict=True):
        if not 0 <= length <= page_tokens:
            raise _wrong("page_lengths", f"lengths from 0 to {page_tokens}", length)
        if length and not 0 <= page < pages:
            raise _wrong("page_table", f"page ids from 0 to {pages - 1} where the length is not 0", page)
