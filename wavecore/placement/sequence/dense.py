"""The dense forward pass of a clip with its tokens split over ranks."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from wavecore import ops
from wavecore.models.dit import CausalWanDiT
from wavecore.models.dit_layers import Attention
from wavecore.models.rope import apply_rope, rope_table
from wavecore.placement.sequence.group import SequenceMode, TokenGroup, check_split


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
        self._dit, self._mode, self._tokens = dit, mode, TokenGroup(group)
        check_split(mode, self._tokens.ranks, dit.config)

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
        dit, config, tokens = self._dit, self._dit.config, self._tokens
        batch, _, frames, height, width = latents.shape
        grid = height // config.patch[1], width // config.patch[2]
        check_split(self._mode, tokens.ranks, config, grid[0] * grid[1])
        positions = torch.arange(frames, device=latents.device).expand(batch, -1)
        rope = rope_table(positions, *grid, config.head_dim)
        time, modulation = dit.embed_time(timesteps)
        context = dit.encode_text(text)
        x = tokens.shard(dit.embed_patches(latents), frames)
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
        out = tokens.gather(dit.head(x, time), frames)
        return dit.unpatchify(out, frames, height, width)

    def _ulysses(self, attn: Attention, n: Tensor, rope: Tensor, reads: Tensor) -> Tensor:
        """All tokens of some heads instead of some tokens of all heads, and back."""
        tokens, frames = self._tokens, reads.shape[0]
        q, k, v = (tokens.tokens_for_heads(attn.split(part(n)), frames) for part in (attn.q, attn.k, attn.v))
        q = apply_rope(tokens.norm(q, attn.norm_q), rope).transpose(1, 2)
        k = apply_rope(tokens.norm(k, attn.norm_k), rope).transpose(1, 2)
        mask = _token_mask(reads, q.shape[2] // frames)
        out = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), attn_mask=mask)
        return tokens.heads_for_tokens(out.transpose(1, 2), frames)

    def _ring(self, attn: Attention, n: Tensor, rope: Tensor, reads: Tensor) -> Tensor:
        """Keys and values go around."""
        frames = reads.shape[0]
        rope = self._tokens.shard(rope, frames)
        q = apply_rope(attn.split(attn.norm_q(attn.q(n))), rope)
        k = apply_rope(attn.split(attn.norm_k(attn.k(n))), rope)
        mask = _token_mask(reads, q.shape[1] // frames)
        scale = q.shape[-1] ** -0.5

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            scores = torch.einsum("bqhd,bkhd->bhqk", q.float(), k.float()) * scale
            scores = scores.masked_fill(~mask, -torch.inf)
            lse = scores.logsumexp(-1)
            part = torch.einsum("bhqk,bkhd->bqhd", (scores - lse[..., None]).exp(), v.float())
            return part, lse.transpose(1, 2)

        return self._tokens.around(q, k, attn.split(attn.v(n)), attend)


def _token_mask(reads: Tensor, tokens: int) -> Tensor:
    """Which token reads which, of which frame reads which, with `tokens` tokens a frame."""
    return reads.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)
