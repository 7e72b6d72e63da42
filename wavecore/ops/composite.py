"""Operations made of others: a backend, and the fake implementations, run them with its own parts.

A call for half a transformer layer goes through PyTorch's dispatcher once, where its parts would ten times.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.ops import checks


def complete(parts: SimpleNamespace) -> SimpleNamespace:
    """The functions of a backend with those that are made of them, where it has none of its own."""
    for function in (block_queries, block_output):
        if not hasattr(parts, function.__name__):
            setattr(parts, function.__name__, partial(function, parts))
    return parts


def block_queries(
    run: SimpleNamespace,
    x: Tensor,
    modulation: Tensor,
    weights: list[Tensor],
    rope: Tensor,
    k_pages: Tensor,
    v_pages: Tensor,
    page_ids: Tensor,
    eps: float,
    unroped_pages: Tensor | None = None,
    unroped_ids: Tensor | None = None,
) -> Tensor:
    checks.block(x, modulation)
    q, q_bias, k, k_bias, v, v_bias, q_norm, k_norm = weights
    normed = run.layer_norm_modulate(x, modulation[:, :, 0], modulation[:, :, 1], eps)
    return run.qkv_page_write(
        run.linear(normed, q, q_bias, False, None, None),
        run.linear(normed, k, k_bias, False, None, None),
        run.linear(normed, v, v_bias, False, None, None),
        q_norm, k_norm, rope, k_pages, v_pages, page_ids, eps, unroped_pages, unroped_ids,
    )  # fmt: skip


def block_output(
    run: SimpleNamespace,
    attended: Tensor,
    x: Tensor,
    modulation: Tensor,
    weights: list[Tensor],
    keys: Tensor,
    values: Tensor,
    eps: float,
) -> Tensor:
    checks.block(x, modulation)
    out, out_bias, norm, norm_bias, q, q_bias, q_norm, cross, cross_bias, *ffn = weights
    up, up_bias, down, down_bias = ffn
    gate, shift, scale, ffn_gate = modulation[:, :, 2:].unbind(2)
    x = run.linear(attended.flatten(-2), out, out_bias, False, x, gate)
    normed = F.layer_norm(x, x.shape[-1:], norm, norm_bias, eps)
    queries = run.rms_norm(run.linear(normed, q, q_bias, False, None, None), q_norm, eps)
    grouped = queries.view(keys.shape[0], -1, *keys.shape[2:])
    x = run.linear(attention(run, grouped, keys, values).view(x.shape), cross, cross_bias, False, x, None)
    hidden = run.linear(run.layer_norm_modulate(x, shift, scale, eps), up, up_bias, True, None, None)
    return run.linear(hidden, down, down_bias, False, x, ffn_gate)


def attention(run: SimpleNamespace, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention to keys and values that lie ready: to the kernels for pages, one page of each slot."""
    if run.backend in ("torch", "triton"):
        return pytorch_attention(q, k, v)
    slots, keys = k.shape[:2]
    table = torch.arange(slots, dtype=torch.int32, device=k.device)[:, None]
    return run.paged_attention(q, k, v, table, torch.full_like(table, keys), q.shape[-1] ** -0.5)


def pytorch_attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """PyTorch's own attention of q [s, tq, h, d] to k and v [s, tk, h, d].

    Keys that all slots share, by a stride of 0, are attended to as by one slot: they are read once, and
    cuDNN, which PyTorch prefers on Hopper, meets no such stride (pytorch/pytorch#175764).
    """
    shape = q.shape
    if mask is None and shape[0] > 1 and k.stride(0) == v.stride(0) == 0:
        q, k, v = q.reshape(1, -1, *shape[2:]), k[:1], v[:1]
    attended = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), attn_mask=mask
    )
    return attended.transpose(1, 2).reshape(shape).contiguous()
