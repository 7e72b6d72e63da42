"""Plain PyTorch in float64: what every other implementation is tested against.

Each function has the arguments of the operation of the same name in `wavecore.ops` (documented there) and
computes in float64 throughout; only the result is rounded to the dtype that the operation returns. Loops over
slots and pages are meant: there is nothing here to get wrong.
"""

from __future__ import annotations

import torch
from torch import Tensor

from wavecore.ops import checks


def _per_token(modulation: Tensor, tokens: int) -> Tensor:
    """[s, f, D] to [s, t, D] in float64: token i belongs to frame i // (t // f)."""
    return modulation.double().repeat_interleave(tokens // max(modulation.shape[1], 1), dim=1)[:, :tokens]


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.double()


def _rotate(x: Tensor, rope: Tensor) -> Tensor:
    """Rotate adjacent pairs of x [..., h, d] by rope [..., d // 2, 2]."""
    even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rope.double().unsqueeze(-3).unbind(-1)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def layer_norm_modulate(x: Tensor, shift: Tensor, scale: Tensor, eps: float) -> Tensor:
    checks.layer_norm_modulate(x, shift, scale)
    tokens = x.shape[1]
    wide = x.double()
    centred = wide - wide.mean(-1, keepdim=True)
    normed = centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (normed * (1 + _per_token(scale, tokens)) + _per_token(shift, tokens)).to(x.dtype)


def gate_residual(x: Tensor, y: Tensor, gate: Tensor) -> Tensor:
    checks.gate_residual(x, y, gate)
    return (x.double() + y.double() * _per_token(gate, x.shape[1])).to(x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    checks.rms_norm(x, weight)
    return _rms_norm(x.double(), weight, eps).to(x.dtype)


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    gelu: bool,
    residual: Tensor | None,
    gate: Tensor | None,
) -> Tensor:
    checks.linear(x, weight, bias, residual, gate)
    out = x.double() @ weight.double().T
    if bias is not None:
        out = out + bias.double()
    if gelu:
        out = 0.5 * out * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (out + 0.044715 * out**3)))
    if residual is not None:
        out = residual.double() + (out if gate is None else out * _per_token(gate, residual.shape[1]))
    return out.to(x.dtype)


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
    normed_k = _rms_norm(k.double(), k_weight, eps).unflatten(-1, per_head)
    roped_k = _rotate(normed_k, rope)
    _write_pages(k_pages, page_ids, roped_k)
    _write_pages(v_pages, page_ids, v.unflatten(-1, per_head))
    if unroped_pages is not None and unroped_ids is not None:
        checks.check_page_ids("unroped_ids", unroped_ids, unroped_pages.shape[0])
        _write_pages(unroped_pages, unroped_ids, normed_k)
    if peer_k_pages is not None and peer_v_pages is not None and peer_ids is not None:
        checks.check_page_ids("peer_ids", peer_ids, peer_k_pages.shape[0])
        _write_pages(peer_k_pages, peer_ids, roped_k)
        _write_pages(peer_v_pages, peer_ids, v.unflatten(-1, per_head))
    return _rotate(_rms_norm(q.double(), q_weight, eps).unflatten(-1, per_head), rope).to(q.dtype)


def _write_pages(pages: Tensor, ids: Tensor, tokens: Tensor) -> None:
    page_tokens = pages.shape[1]
    for slot, row in enumerate(ids.tolist()):
        for index, page in enumerate(row):
            if page >= 0:
                part = tokens[slot, index * page_tokens : (index + 1) * page_tokens]
                pages[page, : len(part)] = part.to(pages.dtype)
                pages[page, len(part) :] = 0


def rope_shift(
    unroped_pages: Tensor, source_ids: Tensor, k_pages: Tensor, target_ids: Tensor, rope: Tensor
) -> None:
    checks.rope_shift(unroped_pages, source_ids, k_pages, target_ids, rope)
    checks.check_page_ids("target_ids", target_ids, k_pages.shape[0])
    checks.check_sources(source_ids, target_ids, unroped_pages.shape[0])
    moves = zip(source_ids.tolist(), target_ids.tolist(), rope, strict=True)
    for source, target, rotation in moves:
        if target >= 0:
            k_pages[target] = _rotate(unroped_pages[source].double(), rotation).to(k_pages.dtype)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> Tensor:
    return paged_attention_lse(q, k_pages, v_pages, page_table, page_lengths, scale)[0]


def paged_attention_lse(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, page_table: Tensor, page_lengths: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    checks.paged_attention(q, k_pages, v_pages, page_table, page_lengths)
    checks.check_context(page_table, page_lengths, k_pages.shape[0], k_pages.shape[1])
    out = torch.zeros(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.full(q.shape[:3], -torch.inf, dtype=torch.float32, device=q.device)
    for slot, row in enumerate(zip(page_table.tolist(), page_lengths.tolist(), strict=True)):
        context = [(page, length) for page, length in zip(*row, strict=True) if length]
        if not context:
            continue
        keys = torch.cat([k_pages[page, :length] for page, length in context]).double()
        values = torch.cat([v_pages[page, :length] for page, length in context]).double()
        scores = torch.einsum("qhd,khd->qhk", q[slot].double(), keys) * scale
        out[slot] = torch.einsum("qhk,khd->qhd", scores.softmax(-1), values).to(q.dtype)
        lse[slot] = scores.logsumexp(-1).float()
    return out, lse
