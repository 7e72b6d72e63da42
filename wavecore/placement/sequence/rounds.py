"""The rounds of a stream with the tokens of every slot split over ranks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import groupby

import torch
from torch import Tensor

from wavecore import ops
from wavecore.cache import ContextCache, PagePool, PageView, PoolSize
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.models.rope import apply_rope, rope_table
from wavecore.placement.local import Batch
from wavecore.placement.sequence.group import SequenceMode, TokenGroup
from wavecore.rounds import Key, NoiseLevel, Round


class SequenceRank:
    """One rank's part of a stream: its pages hold all tokens of its heads, or its tokens of all heads.

    Parameters
    ----------
    dit : CausalWanDiT
    mode : "ulysses" or "ring"
    tokens : TokenGroup
    pages : PoolSize
    height, width : int
        Of a latent frame.
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        mode: SequenceMode,
        tokens: TokenGroup,
        pages: PoolSize,
        height: int,
        width: int,
    ) -> None:
        config = dit.config
        grid = height // config.patch[1], width // config.patch[2]
        self._dit, self._mode, self._tokens = dit, mode, tokens
        by_heads = mode == "ulysses"
        self._frame = dit.tokens_per_frame(height, width) // (1 if by_heads else tokens.ranks)
        pool = PagePool(
            config.layers,
            pages,
            self._frame,
            config.heads // (tokens.ranks if by_heads else 1),
            config.head_dim,
            dit.patch_embedding.weight.dtype,
        )

        def rope(positions: Tensor) -> Tensor:
            return self._own(rope_table(positions[:, None], *grid, config.head_dim), 1)

        self.cache = ContextCache(pool, rope)

    def _own(self, rope: Tensor, frames: int) -> Tensor:
        """Rotations of the tokens that lie in this rank's pages."""
        return rope if self._mode == "ulysses" else self._tokens.shard(rope, frames)

    @torch.inference_mode()
    def run(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> dict[int, Tensor]:
        """Run one round; parameters and result as of `LocalPlacement.run`, on every rank."""
        self.cache.begin(round)
        results: dict[int, Tensor] = {}
        for _, equal in groupby(round.slots, key=lambda slot: slot.frames):
            slots = list(equal)
            pages = self.cache.view(slots)
            batch = Batch(self._dit, slots, pages, round.steps, latents, levels, text)
            results |= self._forward(batch)
        self.cache.end(round)
        return results

    def drop(self, keys: Sequence[Key]) -> None:
        """Forget keys that no further round reads."""
        self.cache.drop(keys)

    def _forward(self, batch: Batch) -> dict[int, Tensor]:
        dit, tokens = self._dit, self._tokens
        frames = batch.slots[0].frames
        batch.state.hidden = tokens.shard(batch.state.hidden, frames)
        batch.state.rope = self._own(batch.state.rope, frames)
        layers = dit.config.layers
        for layer in range(layers):
            q = self._project(batch, layer)
            if layer == layers - 1:
                q = batch.drop_store(q)
                if not batch.slots:
                    return {}
            dit.take_attended(batch.state, layer, self._attend(q, layer, batch.pages, frames))
        batch.state.hidden = tokens.gather(batch.state.hidden, frames)
        return batch.finish(dit)

    def _project(self, batch: Batch, layer: int) -> Tensor:
        """Queries of what this rank attends with; keys and values go to its pages."""
        attn, tokens, pages = self._dit.layer(layer).self_attn, self._tokens, batch.pages
        n = self._dit.attention_input(batch.state, layer)
        parts = [attn.split(part(n)) for part in (attn.q, attn.k, attn.v)]
        if self._mode == "ulysses":
            q, k, v = (tokens.tokens_for_heads(part, batch.slots[0].frames) for part in parts)
            q, k = tokens.norm(q, attn.norm_q), tokens.norm(k, attn.norm_k)
        else:
            q, k = (
                attn.split(attn.norm_q(parts[0].flatten(-2))),
                attn.split(attn.norm_k(parts[1].flatten(-2))),
            )
            v = parts[2]
        if pages.unroped_ids is not None and pages.unroped_pages is not None:
            self._write(pages.unroped_pages[layer], pages.unroped_ids, k)
        self._write(pages.k_pages[layer], pages.write_ids, apply_rope(k, batch.state.rope))
        self._write(pages.v_pages[layer], pages.write_ids, v)
        return apply_rope(q, batch.state.rope)

    def _write(self, pages: Tensor, ids: Tensor, values: Tensor) -> None:
        """Frames of [s, f * n, h, d] to their pages; a page of -1 takes none."""
        frames, flat = values.unflatten(1, (ids.shape[1], self._frame)).flatten(0, 1), ids.flatten()
        kept = flat >= 0
        pages[flat[kept].long()] = frames[kept]

    def _attend(self, q: Tensor, layer: int, pages: PageView, frames: int) -> Tensor:
        """Attention [s, t / p, h, d] of this rank's tokens."""
        k_pages, v_pages, lengths = pages.k_pages[layer], pages.v_pages[layer], pages.read_lengths
        if self._mode == "ulysses":
            out = ops.paged_attention(q, k_pages, v_pages, pages.read_table, lengths)
            assert isinstance(out, Tensor)
            return self._tokens.heads_for_tokens(out, frames)
        # The pages that are read, side by side. Pages follow from the rounds, so every rank has the same.
        read, places = pages.read_table.unique(return_inverse=True)
        first = int((read < 0).sum())
        read, places = read[first:].long(), (places - first).clamp(min=-1).to(torch.int32)

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
            out, lse = ops.paged_attention(q, k, v, places, lengths, return_lse=True)
            return out, lse

        return self._tokens.around(q, k_pages[read], v_pages[read], attend)
