"""Sequence parallelism: the tokens of a chunk split over ranks, the baselines of wave parallelism.

Every rank of a `torch.distributed` group holds the whole model and a part of each frame's tokens. `ulysses`
trades tokens for heads around attention, by exchanges of all with all; `ring` passes keys and values around
and joins partial results by their log-sum-exp. Wan's query and key norms go over all heads: where a rank
holds some of the heads, the sums of squares are added over the ranks (`sharded_rms_norm`).
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.models.dit import CausalWanDiT
from wavecore.models.dit_layers import Attention, RMSNorm
from wavecore.models.rope import apply_rope, rope_table

SequenceMode = Literal["ulysses", "ring"]


def sharded_rms_norm(x: Tensor, weight: Tensor, eps: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """Root-mean-square norm over features that are spread over the ranks.

    Parameters
    ----------
    x : Tensor [..., D / p]
        This rank's features.
    weight : Tensor [D / p]
        Its part of the weight.
    eps : float
    group : ProcessGroup, optional

    Returns
    -------
    Tensor [..., D / p]
    """
    squares = x.float().square().sum(-1, keepdim=True)
    dist.all_reduce(squares, group=group)
    count = x.shape[-1] * dist.get_world_size(group)
    return (x.float() * torch.rsqrt(squares / count + eps)).to(x.dtype) * weight


class SequenceParallel:
    """Runs the dense forward pass of a clip with its tokens split over the ranks of a group.

    Parameters
    ----------
    dit : CausalWanDiT
        The same on every rank.
    mode : "ulysses" or "ring"
    group : ProcessGroup, optional
        The default group when not given.

    Raises
    ------
    UsageError
        The ranks do not divide the heads ("ulysses").
    """

    def __init__(self, dit: CausalWanDiT, mode: SequenceMode, group: dist.ProcessGroup | None = None) -> None:
        if mode not in ("ulysses", "ring"):
            raise UsageError(f"mode: expected ulysses or ring, got {mode!r}")
        self._dit, self._mode, self._group = dit, mode, group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)
        if mode == "ulysses" and dit.config.heads % self.ranks:
            raise UsageError(
                f"devices: expected a number that divides {dit.config.heads} heads, got {self.ranks}"
            )

    @torch.inference_mode()
    def predict(self, latents: Tensor, timesteps: Tensor, text: Tensor, chunk_frames: int = 3) -> Tensor:
        """What the head gives for a chunk-causal clip, as `CausalWanDiT.predict` with attend="causal".

        Parameters
        ----------
        latents : Tensor [b, c, f, h, w]
            The whole clip, on every rank.
        timesteps : Tensor [b, f]
        text : Tensor [b, l, text_dim]
        chunk_frames : int

        Returns
        -------
        Tensor [b, c, f, h, w]
            The whole prediction, on every rank.

        Raises
        ------
        UsageError
            The ranks do not divide the tokens of a frame.
        """
        dit, config = self._dit, self._dit.config
        batch, _, frames, height, width = latents.shape
        grid = height // config.patch[1], width // config.patch[2]
        tokens = grid[0] * grid[1]
        if tokens % self.ranks:
            raise UsageError(f"devices: expected a number that divides {tokens} tokens, got {self.ranks}")
        positions = torch.arange(frames, device=latents.device).expand(batch, -1)
        rope = rope_table(positions, *grid, config.head_dim)
        time, modulation = dit.embed_time(timesteps)
        context = dit.encode_text(text)
        x = self._shard(dit.embed_patches(latents), frames)
        chunk = torch.arange(frames, device=latents.device) // chunk_frames
        reads = chunk[:, None] >= chunk[None, :]
        for index in range(config.layers):
            block = dit.layer(index)
            shift, scale, gate, shift2, scale2, gate2 = (modulation + block.modulation).unbind(2)
            n = ops.layer_norm_modulate(x, shift, scale, block.eps)
            attend = self._ulysses if self._mode == "ulysses" else self._ring
            attended = attend(block.self_attn, n, rope, reads)
            x = ops.gate_residual(x, block.self_attn.o(attended.flatten(-2)), gate)
            x = block.cross(x, context.keys[index], context.values[index])
            x = ops.gate_residual(x, block.ffn(ops.layer_norm_modulate(x, shift2, scale2, block.eps)), gate2)
        out = self._gather(dit.head(x, time), frames)
        return dit.unpatchify(out, frames, height, width)

    # -- tokens ---------------------------------------------------------------------------

    def _shard(self, x: Tensor, frames: int) -> Tensor:
        """This rank's tokens of every frame: [b, f * n, ...] to [b, f * n / p, ...]."""
        return x.unflatten(1, (frames, -1)).chunk(self.ranks, 2)[self.rank].flatten(1, 2)

    def _gather(self, x: Tensor, frames: int) -> Tensor:
        """The inverse, on every rank."""
        parts = [torch.empty_like(x) for _ in range(self.ranks)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in parts], 2).flatten(1, 2)

    # -- attention -------------------------------------------------------------------------

    def _ulysses(self, attn: Attention, n: Tensor, rope: Tensor, reads: Tensor) -> Tensor:
        """All tokens of some heads instead of some tokens of all heads, and back."""
        frames = reads.shape[0]
        q, k, v = (self._tokens_for_heads(attn.split(part(n)), frames) for part in (attn.q, attn.k, attn.v))
        q = apply_rope(self._norm(q, attn.norm_q), rope).transpose(1, 2)
        k = apply_rope(self._norm(k, attn.norm_k), rope).transpose(1, 2)
        mask = _token_mask(reads, q.shape[2] // frames)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), attn_mask=mask)
        return self._heads_for_tokens(out.transpose(1, 2), frames)

    def _norm(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """Norm over all heads of [b, t, h / p, d], this rank's heads."""
        weight = norm.weight.chunk(self.ranks)[self.rank]
        return sharded_rms_norm(x.flatten(-2), weight, norm.eps, self._group).reshape(x.shape)

    def _tokens_for_heads(self, x: Tensor, frames: int) -> Tensor:
        """[b, f * n / p, h, d] to [b, f * n, h / p, d]."""
        sent = [part.contiguous() for part in x.chunk(self.ranks, 2)]
        came = self._all_to_all(sent)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in came], 2).flatten(1, 2)

    def _heads_for_tokens(self, x: Tensor, frames: int) -> Tensor:
        """[b, f * n, h / p, d] to [b, f * n / p, h, d]."""
        parts = x.unflatten(1, (frames, -1)).chunk(self.ranks, 2)
        return torch.cat(self._all_to_all([part.flatten(1, 2).contiguous() for part in parts]), 2)

    def _all_to_all(self, sent: list[Tensor]) -> list[Tensor]:
        # Pair by pair: the gloo backend has no exchange of all with all.
        came = [torch.empty_like(part) for part in sent]
        came[self.rank] = sent[self.rank]
        works: list[Any] = []
        for other in (r for r in range(self.ranks) if r != self.rank):
            works.append(dist.isend(sent[other], group=self._group, group_dst=other))
            works.append(dist.irecv(came[other], group=self._group, group_src=other))
        for work in works:
            work.wait()
        return came

    def _ring(self, attn: Attention, n: Tensor, rope: Tensor, reads: Tensor) -> Tensor:
        """Keys and values go around; each part's result counts by its log-sum-exp."""
        frames = reads.shape[0]
        rope = self._shard(rope, frames)
        q = apply_rope(attn.split(attn.norm_q(attn.q(n))), rope)
        k = apply_rope(attn.split(attn.norm_k(attn.k(n))), rope)
        v = attn.split(attn.v(n))
        mask = _token_mask(reads, q.shape[1] // frames)
        scale = q.shape[-1] ** -0.5
        out: Tensor | None = None
        lse: Tensor | None = None
        for step in range(self.ranks):
            works: list[Any] = []
            arriving = None
            if step < self.ranks - 1:
                both = torch.stack([k, v])
                arriving = torch.empty_like(both)
                after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
                works = [
                    dist.isend(both, group=self._group, group_dst=after),
                    dist.irecv(arriving, group=self._group, group_src=before),
                ]
            scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
            scores = scores.masked_fill(~mask, -torch.inf)
            part_lse = scores.logsumexp(-1)
            part = torch.einsum("bhqk,bkhd->bhqd", (scores - part_lse[..., None]).exp(), v.float())
            if out is None or lse is None:
                out, lse = part, part_lse
            else:
                joined = torch.logaddexp(lse, part_lse)
                out = out * (lse - joined).exp()[..., None] + part * (part_lse - joined).exp()[..., None]
                lse = joined
            for work in works:
                work.wait()
            if arriving is not None:
                k, v = arriving.unbind(0)
        assert out is not None
        return out.transpose(1, 2).to(q.dtype)


def _token_mask(reads: Tensor, tokens: int) -> Tensor:
    """Which token reads which, of which frame reads which, with `tokens` tokens a frame."""
    return reads.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
