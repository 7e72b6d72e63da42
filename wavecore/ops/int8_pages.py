"""Public functions on pages in int8 and float8: quantisation of keys and values, attention to them.

Letters of shapes: see `wavecore.ops`. Of scales, and of numbers that are not finite: see `wavecore.ops.int8`.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple, overload

import torch
from torch import Tensor

from wavecore.errors import UsageError
from wavecore.ops import gradient
from wavecore.ops.library import LIBRARY

_ops = getattr(torch.ops, LIBRARY.ns)
_quantize_key_pages = _ops.quantize_key_pages.default
_quantize_value_pages = _ops.quantize_value_pages.default
_paged_attention_int8 = _ops.paged_attention_int8.default
_paged_attention_int8_lse = _ops.paged_attention_int8.lse
_ALIGNMENT = 16  # bytes, of what a GPU loads at once


class QuantizedKeyPages(NamedTuple):
    """Keys in int8, without the mean that the tokens of a page have in common.

    Attributes
    ----------
    data : Tensor int8 [p, n, h, d]
        Numbers of each key; zeros behind the valid tokens of a page.
    scale : Tensor float32 [p, n, h]
        Scale of each token and head; a page of it is contiguous.
    mean : Tensor float32 [p, h, d]
        Mean key of each page ("smoothed keys" of SageAttention, section 3.1); a page of it is contiguous.
    """

    data: Tensor
    scale: Tensor
    mean: Tensor


class QuantizedValuePages(NamedTuple):
    """Values in float8, for matrix units that take it.

    Attributes
    ----------
    data : Tensor float8_e4m3fn [p, n, h, d]
        Numbers of each value; zeros behind the valid tokens of a page.
    scale : Tensor float32 [p, h]
        Scale of each page and head: largest magnitude divided by 448.
    """

    data: Tensor
    scale: Tensor


def empty_key_pages(
    pages: int, page_tokens: int, heads: int, head_dim: int, device: torch.device | str = "cpu"
) -> QuantizedKeyPages:
    """Pages of quantised keys, all zero."""
    count = key_page_bytes(page_tokens, heads, head_dim)
    memory = torch.zeros(pages, count, dtype=torch.uint8, device=device)
    return key_pages_in(memory, page_tokens, heads, head_dim)


def key_page_bytes(page_tokens: int, heads: int, head_dim: int) -> int:
    """Bytes of a page of quantised keys in one piece of memory: its numbers, its scales, its mean.

    A multiple of a token's bytes, so that the tokens of all pages lie in one matrix, as tensor descriptors of
    a GPU want it, and of 16.
    """
    end = _key_page_parts(page_tokens, heads, head_dim)[-1]
    unit = math.lcm(max(1, heads * head_dim), _ALIGNMENT)
    return -(-end // unit) * unit


def _key_page_parts(page_tokens: int, heads: int, head_dim: int) -> tuple[int, int, int, int]:
    """Where the numbers of a page end, and where its scales begin, its mean begins, and it ends, in bytes."""
    numbers = page_tokens * heads * head_dim
    scale = -(-numbers // _ALIGNMENT) * _ALIGNMENT
    mean = scale + 4 * page_tokens * heads
    return numbers, scale, mean, mean + 4 * heads * head_dim


def key_pages_in(memory: Tensor, page_tokens: int, heads: int, head_dim: int) -> QuantizedKeyPages:
    """Pages of quantised keys each in one piece, so that one copy moves a page.

    Parameters
    ----------
    memory : Tensor uint8 [p, bytes]
        With `key_page_bytes` bytes a page.
    page_tokens, heads, head_dim : int
        Of a page.

    Returns
    -------
    QuantizedKeyPages
        Views of the memory.

    Raises
    ------
    UsageError
        For memory of another dtype or size.
    """
    count = key_page_bytes(page_tokens, heads, head_dim)
    if memory.dtype != torch.uint8 or memory.dim() != 2 or memory.shape[1] != count:
        raise UsageError(
            f"memory: expected torch.uint8 [p, {count}], got {memory.dtype} {list(memory.shape)}"
        )
    numbers, scale, mean, end = _key_page_parts(page_tokens, heads, head_dim)
    return QuantizedKeyPages(
        memory[:, :numbers].view(torch.int8).unflatten(1, (page_tokens, heads, head_dim)),
        memory[:, scale:mean].view(torch.float32).unflatten(1, (page_tokens, heads)),
        memory[:, mean:end].view(torch.float32).unflatten(1, (heads, head_dim)),
    )


def quantize_key_pages(
    k_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, out: QuantizedKeyPages
) -> None:
    """Quantise whole pages of keys, once, when they have been written.

    Parameters
    ----------
    k_pages : Tensor [p, n, h, d]
        Normed and rotated keys, as `wavecore.ops.qkv_page_write` stores them.
    page_ids : Tensor int32 [m]
        Pages to quantise; -1 skips the entry.
    page_lengths : Tensor int32 [m]
        Valid tokens of each; what lies behind them is neither read nor counted in the mean.
    out : QuantizedKeyPages
        Pages of the same sizes, written in place at the same ids.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id or length out of range (on the CPU).
    """
    _quantize_key_pages(k_pages, page_ids, page_lengths, *out)


def empty_value_pages(
    pages: int, page_tokens: int, heads: int, head_dim: int, device: torch.device | str = "cpu"
) -> QuantizedValuePages:
    """Pages of values in float8, all zero."""
    return QuantizedValuePages(
        torch.zeros(pages, page_tokens, heads, head_dim, dtype=torch.float8_e4m3fn, device=device),
        torch.zeros(pages, heads, device=device),
    )


def quantize_value_pages(
    v_pages: Tensor, page_ids: Tensor, page_lengths: Tensor, out: QuantizedValuePages
) -> None:
    """Quantise whole pages of values to float8, once, when they have been written.

    Parameters
    ----------
    v_pages : Tensor [p, n, h, d]
        Values, as `wavecore.ops.qkv_page_write` stores them.
    page_ids, page_lengths
        As in `quantize_key_pages`.
    out : QuantizedValuePages
        Pages of the same sizes, written in place at the same ids.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id or length out of range (on the CPU).
    """
    _quantize_value_pages(v_pages, page_ids, page_lengths, *out)


@overload
def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: Literal[False] = False,
) -> Tensor: ...


@overload
def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    *,
    return_lse: Literal[True],
) -> tuple[Tensor, Tensor]: ...


def paged_attention_int8(
    q: Tensor,
    k_pages: QuantizedKeyPages,
    v_pages: Tensor | QuantizedValuePages,
    page_table: Tensor,
    page_lengths: Tensor,
    scale: float | None = None,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """`wavecore.ops.paged_attention` with scores from int8 queries and keys.

    Queries are quantised for each token and head; their product with the mean of a page is taken unrounded.
    Values, and the products with them, stay in the dtype of `q`. Or the values are float8, and then the
    weights too: Hopper has such products at twice the rate; the cosine to exact attention is 0.9993 then,
    not 0.9999.

    Parameters
    ----------
    q : Tensor [s, tq, h, d]
        Queries; d up to 512.
    k_pages : QuantizedKeyPages
        Keys.
    v_pages : Tensor [p, n, h, d] or QuantizedValuePages
        Values. In float8 on a GPU from compute capability 8.9 on; a CPU widens them first.
    page_table, page_lengths, scale, return_lse
        As in `wavecore.ops.paged_attention`.

    Returns
    -------
    out : Tensor [s, tq, h, d]
        0 for a slot whose context is empty.
    lse : Tensor float32 [s, tq, h]
        With `return_lse` only.
    """
    values, v_scale = v_pages if isinstance(v_pages, QuantizedValuePages) else (v_pages, None)
    gradient.refuse(q=q, v_pages=values)
    if scale is None:
        scale = max(1, q.shape[-1]) ** -0.5
    run = _paged_attention_int8_lse if return_lse else _paged_attention_int8
    return run(q, *k_pages, values, page_table, page_lengths, scale, v_scale)
