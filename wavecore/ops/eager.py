"""PyTorch in the dtype of the arguments: what runs where no kernel of this package can.

`layer_norm_modulate`, `gate_residual` and `rms_norm` are differentiable.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.ops import checks


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    if x.shape[1] == 0:
        return x.new_empty(x.shape)
    frames = (shift.shape[1], -1)
    normed = F.layer_norm(x, x.shape[-1:], eps=eps).unflatten(1, frames)
    return (
        torch.addcmul(shift.unsqueeze(2), normed, 1 + scale.unsqueeze(2))
        .flatten(1, 2)
        .to(x.dtype)
        .contiguous()
    )


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    if x.shape[1] == 0:
        return x.new_empty(x.shape)
    frames = (gate.shape[1], -1)
    gated = torch.addcmul(x.unflatten(1, frames), y.unflatten(1, frames), gate.unsqueeze(2))
    return gated.flatten(1, 2).to(x.dtype).contiguous()


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return F.rms_norm(x, x.shape[-1:], weight.to(x.dtype), eps).contiguous()


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    checks.linear(x, weight, bias, residual, gate)
    out = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    if gelu:
        out = F.gelu(out, approximate="tanh")
    if residual is not None:
        out = residual + out if gate is None else gate_residual(residual, out, gate)
    return out.contiguous()


def rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate adjacent pairs of x [..., h, d] by rope [..., d // 2, 2]; computes in float32."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.unsqueeze(-3).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2).to(x.dtype)


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
    checks.qkv_page_write(
        q, k, v, q_weight, k_weight, rope, k_pages, v_pages, page_ids, unroped_pages, unroped_ids,
        peer_k_pages, peer_v_pages, peer_ids,
    )  # fmt: skip
    checks.check_page_ids("page_ids", page_ids, k_pages.shape[0])
    per_head = k_pages.shape[2:]
    normed_k = rms_norm(k, k_weight, eps).unflatten(-1, per_head)
    roped_k = rotate(normed_k, rope)
    _write_pages(k_pages, page_ids, roped_k)
    _write_pages(v_pages, page_ids, v.unflatten(-1, per_head))
    if unroped_pages is not None and unroped_ids is not None:
        checks.check_page_ids("unroped_ids", unroped_ids, unroped_pages.shape[0])
        _write_pages(unroped_pages, unroped_ids, normed_k)
    if peer_k_pages is not None and peer_v_pages is not None and peer_ids is not None:
        checks.check_page_ids("peer_ids", peer_ids, peer_k_pages.shape[0])
        _write_pages(peer_k_pages, peer_ids, roped_k)
        _write_pages(peer_v_pages, peer_ids, v.unflatten(-1, per_head))
    return rotate(rms_norm(q, q_weight, eps).unflatten(-1, per_head), rope)


def _write_pages(pages: Tensor, ids: Tensor, tokens: Tensor) -> None:
    """Write tokens [s, t, h, d] to whole pages; the last page of a slot is filled up with zeros."""
    page_tokens = pages.shape[1]
    padding = ids.shape[1] * page_tokens - tokens.shape[1]
    sources = F.pad(tokens, (0, 0, 0, 0, 0, padding)).reshape(-1, *pages.shape[1:])
    kept = ids.flatten() >= 0
    pages.index_copy_(0, ids.flatten()[kept].long(), sources[kept])


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)
    checks.check_page_ids("target_ids", target_ids, k_pages.shape[0])
    checks.check_sources(source_ids, target_ids, unroped_pages.shape[0])
    kept = target_ids >= 0
    shifted = rotate(unroped_pages[source_ids[kept].long()], rope[kept])
    k_pages.index_copy_(0, target_ids[kept].long(), shifted)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    for slot, context in _contexts(k_pages.shape, page_table, page_lengths):
        keys, values = _gather(k_pages, context), _gather(v_pages, context)
        queries = q[slot].transpose(0, 1)
        # A batch dimension: without one PyTorch does not take its fused CPU kernel.
        attended = F.scaled_dot_product_attention(queries[None], keys[None], values[None], scale=scale)
        out[slot] = attended[0].transpose(0, 1)
    return out


def paged_attention_lse(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    out = paged_attention(q, k_pages, v_pages, page_table, page_lengths, scale)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    for slot, context in _contexts(k_pages.shape, page_table, page_lengths):
        keys = _gather(k_pages, context).float()
        scores = (q[slot].transpose(0, 1).float() * scale) @ keys.transpose(1, 2)
        lse[slot] = scores.logsumexp(-1).transpose(0, 1)
    return out, lse


def _contexts(
    shape: torch.Size, page_table: Tensor, page_lengths: Tensor
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """Slots whose context is not empty, with the (page, length) pairs that it is made of."""
    checks.check_context(page_table, page_lengths, shape[0], shape[1])
    for slot, row in enumerate(zip(page_table.tolist(), page_lengths.tolist(), strict=True)):
        context = [(page, length) for page, length in zip(*row, strict=True) if length]
        if context:
            yield slot, context


def _gather(pages: Tensor, context: list[tuple[int, int]]) -> Tensor:
    """Valid tokens of the pages of a context, [h, tokens, d]."""
    return torch.cat([pages[page, :length] for page, length in context]).transpose(0, 1)
