"""Operations that run half a transformer layer each, and attention to keys that lie ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import NamedTuple

import torch
from torch import Tensor

from wavecore.ops import composite, gradient
from wavecore.ops.backend import selected
from wavecore.ops.library import LIBRARY

_ops = getattr(torch.ops, LIBRARY.ns)
_block_queries = _ops.block_queries.default
_block_output = _ops.block_output.default
_dispatched = SimpleNamespace(backend="native", paged_attention=_ops.paged_attention.default)


class QueryWeights(NamedTuple):
    """Weights [D, D] and biases [D] of the projections of self-attention; weights [D] of the norms behind."""

    q: Tensor
    q_bias: Tensor
    k: Tensor
    k_bias: Tensor
    v: Tensor
    v_bias: Tensor
    q_norm: Tensor
    k_norm: Tensor


class OutputWeights(NamedTuple):
    """Weights of what follows self-attention in a layer.

    Its output projection; the norm, query projection, query norm and output projection of cross-attention;
    the two linear layers of the feed-forward: weights [outputs, inputs], biases and norms [outputs].
    """

    out: Tensor
    out_bias: Tensor
    norm: Tensor
    norm_bias: Tensor
    cross_q: Tensor
    cross_q_bias: Tensor
    cross_q_norm: Tensor
    cross_out: Tensor
    cross_out_bias: Tensor
    up: Tensor
    up_bias: Tensor
    down: Tensor
    down_bias: Tensor


def block_queries(
    x: Tensor,
    modulation: Tensor,
    weights: QueryWeights,
    rope: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_ids: Tensor,
    eps: float,
    unroped_pages: Tensor | None = None,
    unroped_ids: Tensor | None = None,
) -> Tensor:
    """First half of a layer: `layer_norm_modulate`, three times `linear`, `qkv_page_write`, in one call.

    Parameters
    ----------
    x : Tensor [s, t, D]
        Hidden state.
    modulation : Tensor [s, f, 6, D]
        Shift, scale and gate of self-attention, then of the feed-forward; f divides t. Two are read.
    weights : QueryWeights
        Of the layer.
    rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids
        As in `wavecore.ops.qkv_page_write`.
    eps : float
        Of all norms.

    Returns
    -------
    Tensor [s, t, h, d]
        Normed and rotated queries.

    Raises
    ------
    UsageError
        For a wrong argument, or for a page id outside the pages (on the CPU).
    """
    gradient.refuse(x=x, modulation=modulation)
    return _block_queries(
        x, modulation, weights, rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids
    )


def block_output(
    attended: Tensor,
    x: Tensor,
    modulation: Tensor,
    weights: OutputWeights,
    keys: Tensor,
    values: Tensor,
    eps: float,
) -> Tensor:
    """What follows self-attention in a layer, in one call.

    Output projection with gate and residual; cross-attention with its norms and residual; feed-forward with
    norm, modulation, gate and residual.

    Parameters
    ----------
    attended : Tensor [s, t, h, d]
        What `paged_attention` gave.
    x : Tensor [s, t, D]
        Hidden state.
    modulation : Tensor [s, f, 6, D]
        As in `block_queries`; the last four are read.
    weights : OutputWeights
        Of the layer.
    keys, values : Tensor [g, l, h, d]
        Of the text; a group g of them serves the tokens of s / g slots, or a slot g / s of them.
    eps : float
        Of all norms.

    Returns
    -------
    Tensor [s, t, D]
        Hidden state behind the layer.

    Raises
    ------
    UsageError
        For a wrong argument.
    """
    gradient.refuse(attended=attended, x=x, modulation=modulation)
    return _block_output(attended, x, modulation, weights, keys, values, eps)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """Attention of each slot's queries to keys and values that lie ready, as those of a text do.

    PyTorch's own, and differentiable, except on the CPU without gradient and mask: there the kernel of
    `paged_attention` reads the keys of a slot as its only page.

    Parameters
    ----------
    q : Tensor [s, tq, h, d]
        Queries.
    k, v : Tensor [s, tk, h, d]
        Keys and values.
    mask : bool Tensor [tq, tk] or [s, 1, tq, tk], optional
        Which key (column) a query (row) reads.

    Returns
    -------
    Tensor [s, tq, h, d]
    """
    if mask is None and not gradient.wanted(q, k, v) and selected.of(q).backend == "native":
        return composite.attention(_dispatched, q, k, v)
    return composite.pytorch_attention(q, k, v, mask)
