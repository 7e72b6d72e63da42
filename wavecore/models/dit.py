"""Causal Wan 2.1 diffusion transformer.

Module and parameter names are those of the original Wan 2.1 checkpoints, so a state dict
of that naming loads without renaming. One set of weights has two ways through it:

* `CausalWanDiT.forward`: a whole clip at once with a dense attention mask (training, oracles);
* `CausalWanDiT.forward_paged`: the slots of one round, whose keys and values live in pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

import torch
from torch import Tensor, nn

from wavecore import ops
from wavecore.cache.view import PageView
from wavecore.errors import UsageError
from wavecore.models.dit_config import WAN_1_3B, WAN_14B, DiTConfig
from wavecore.models.dit_layers import Block, Head, Linear
from wavecore.models.rope import rope_table
from wavecore.ops import QuantizedKeyPages, QuantizedTokens

__all__ = ["WAN_1_3B", "WAN_14B", "CausalWanDiT", "DiTConfig", "SlotState", "TextContext"]


@dataclass(frozen=True)
class TextContext:
    """Cross-attention keys and values of one prompt version, [b, l, h, d] for each layer."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @staticmethod
    def stack(contexts: list[TextContext]) -> TextContext:
        """Join the contexts of several slots along the batch."""
        if all(context is contexts[0] for context in contexts):
            only, count = contexts[0], len(contexts)
            return TextContext(
                tuple(k.expand(count, -1, -1, -1) for k in only.keys),
                tuple(v.expand(count, -1, -1, -1) for v in only.values),
            )
        return TextContext(
            tuple(torch.cat(k) for k in zip(*(c.keys for c in contexts), strict=True)),
            tuple(torch.cat(v) for v in zip(*(c.values for c in contexts), strict=True)),
        )


@dataclass
class SlotState:
    """Hidden state of the slots of a round between two layers."""

    hidden: Tensor  # [s, t, D]
    modulation: Tensor  # [s, f, 6, D]
    time: Tensor  # [s, f, D]
    rope: Tensor  # [s, t, d // 2, 2]
    text: TextContext
    latents: Tensor  # [s, c, f, h, w]
    timesteps: Tensor  # [s, f]


class CausalWanDiT(nn.Module):
    """Wan 2.1 diffusion transformer with a noise level per latent frame.

    Parameters
    ----------
    config : DiTConfig
        Sizes; `WAN_1_3B` and `WAN_14B` are the published ones.

    Attributes
    ----------
    int8_keys : bool
        Whether caches that are made for the model hold keys in int8.
    """

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        self.int8_keys = False
        dim = config.dim
        self.patch_embedding = nn.Conv3d(config.in_channels, dim, config.patch, config.patch)
        self.text_embedding = nn.Sequential(
            Linear(config.text_dim, dim), nn.GELU(approximate="tanh"), Linear(dim, dim)
        )
        self.time_embedding = nn.Sequential(Linear(config.frequency_dim, dim), nn.SiLU(), Linear(dim, dim))
        self.time_projection = nn.Sequential(nn.SiLU(), Linear(dim, 6 * dim))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.head = Head(config)

    # -- pieces shared by both ways ------------------------------------------------------

    def layer(self, index: int) -> Block:
        """One transformer layer."""
        return cast(Block, self.blocks[index])

    def tokens_per_frame(self, height: int, width: int) -> int:
        """Tokens of one latent frame of `height` x `width` latent pixels."""
        return (height // self.config.patch[1]) * (width // self.config.patch[2])

    def embed_patches(self, latents: Tensor) -> Tensor:
        """[s, c, f, h, w] to tokens [s, t, D] in (frame, row, column) order."""
        s, c, f, h, w = latents.shape
        ph, pw = self.config.patch[1:]
        if c != self.config.in_channels or h % ph or w % pw:
            raise UsageError(
                f"latents: expected [s, {self.config.in_channels}, f, multiple of {ph}, multiple of {pw}], "
                f"got {list(latents.shape)}"
            )
        x = latents.reshape(s, c, f, h // ph, ph, w // pw, pw).permute(0, 2, 3, 5, 1, 4, 6)
        x = x.reshape(s, f * (h // ph) * (w // pw), c * ph * pw)
        return ops.linear(x, self.patch_embedding.weight.flatten(1), self.patch_embedding.bias)

    def embed_time(self, timesteps: Tensor) -> tuple[Tensor, Tensor]:
        """Timesteps [s, f] (0 to 1000) to the embedding [s, f, D] and its projection [s, f, 6, D]."""
        half = self.config.frequency_dim // 2
        exponent = torch.arange(half, dtype=torch.float64, device=timesteps.device) / half
        angles = timesteps.to(torch.float64)[..., None] * 10000.0**-exponent
        frequencies = torch.cat([angles.cos(), angles.sin()], dim=-1)
        time = self.time_embedding(frequencies.to(self.patch_embedding.weight.dtype))
        return time, self.time_projection(time).unflatten(-1, (6, -1))

    def unpatchify(self, x: Tensor, frames: int, height: int, width: int) -> Tensor:
        """Head output [s, t, ph * pw * c] to [s, c, f, h, w]."""
        ph, pw = self.config.patch[1:]
        x = x.reshape(x.shape[0], frames, height // ph, width // pw, ph, pw, self.config.out_channels)
        return x.permute(0, 6, 1, 2, 4, 3, 5).reshape(
            x.shape[0], self.config.out_channels, frames, height, width
        )

    def encode_text(self, text: Tensor) -> TextContext:
        """Cross-attention keys and values of text features [b, l, text_dim], once per prompt version.

        The features may be of any dtype: text encoders come in lower precision than transformers do.
        """
        embedded = self.text_embedding(text.to(self.patch_embedding.weight.dtype))
        pairs = [self.layer(i).text_keys(embedded) for i in range(self.config.layers)]
        return TextContext(tuple(k for k, _ in pairs), tuple(v for _, v in pairs))

    # -- dense ---------------------------------------------------------------------------

    def forward(
        self,
        latents: Tensor,
        timesteps: Tensor,
        text: Tensor,
        attend: Literal["full", "causal"] | Tensor = "full",
        chunk_frames: int = 3,
        frame_positions: Tensor | None = None,
    ) -> Tensor:
        """Velocity of a whole clip.

        Parameters
        ----------
        latents : Tensor [b, c, f, h, w]
            Noisy latents.
        timesteps : Tensor [b, f]
            1000 * sigma of each latent frame.
        text : Tensor [b, l, text_dim] or [b, g, l, text_dim]
            Text features; with `g` groups, each group conditions `f / g` consecutive frames.
        attend : "full", "causal" or bool Tensor [f, f] or [b, f, f]
            Everything, chunk-causal (full inside a chunk, chunks before it), or which frame
            (row) reads which frame (column).
        chunk_frames : int
            Latent frames of a chunk, for "causal".
        frame_positions : Tensor [b, f], optional
            Temporal index of each frame; 0, 1, ... when not given.

        Returns
        -------
        Tensor [b, c, f, h, w]
            Velocity, epsilon minus x0.
        """
        output = self.predict(latents, timesteps, text, attend, chunk_frames, frame_positions)
        if self.config.prediction == "velocity":
            return output
        sigmas = (timesteps / 1000).clamp(min=1e-3).to(output.dtype)
        return (latents - output) / sigmas[:, None, :, None, None]

    def predict(
        self,
        latents: Tensor,
        timesteps: Tensor,
        text: Tensor,
        attend: Literal["full", "causal"] | Tensor = "full",
        chunk_frames: int = 3,
        frame_positions: Tensor | None = None,
    ) -> Tensor:
        """What the head gives, `config.prediction`; arguments as in `forward`."""
        self._check_clip(latents, timesteps, text, attend, chunk_frames, frame_positions)
        batch, _, frames, height, width = latents.shape
        grid = height // self.config.patch[1], width // self.config.patch[2]
        if frame_positions is None:
            frame_positions = torch.arange(frames, device=latents.device).expand(batch, -1)
        rope = rope_table(frame_positions, *grid, self.config.head_dim)
        mask = self._mask(attend, frames, grid[0] * grid[1], chunk_frames, latents.device)
        time, modulation = self.embed_time(timesteps)
        context = self.encode_text(text.reshape(-1, *text.shape[-2:]))
        x = self.embed_patches(latents)
        for block, keys, values in zip(self.blocks, context.keys, context.values, strict=True):
            x = block(x, modulation, rope, keys, values, mask)
        return self.unpatchify(self.head(x, time), frames, height, width)

    def _check_clip(
        self,
        latents: Tensor,
        timesteps: Tensor,
        text: Tensor,
        attend: str | Tensor,
        chunk_frames: int,
        frame_positions: Tensor | None,
    ) -> None:
        if latents.dim() != 5 or not latents.numel():
            raise UsageError(f"latents: expected [b, c, f, h, w], none of them 0, got {list(latents.shape)}")
        dtype = self.patch_embedding.weight.dtype
        if latents.dtype != dtype:
            raise UsageError(f"latents: expected {dtype} as the weights, got {latents.dtype}")
        batch, frames = latents.shape[0], latents.shape[2]
        if frame_positions is not None and frame_positions.shape != (batch, frames):
            got = list(frame_positions.shape)
            raise UsageError(f"frame_positions: expected [{batch}, {frames}], got {got}")
        if isinstance(attend, Tensor) and (
            attend.dtype != torch.bool or attend.shape not in ((frames, frames), (batch, frames, frames))
        ):
            raise UsageError(
                f"attend: expected a bool tensor [{frames}, {frames}] or [{batch}, {frames}, {frames}], "
                f"got {attend.dtype} {list(attend.shape)}"
            )
        if timesteps.shape != (batch, frames):
            raise UsageError(f"timesteps: expected [{batch}, {frames}], got {list(timesteps.shape)}")
        groups = text.shape[1] if text.dim() == 4 else 1
        if (
            text.dim() not in (3, 4)
            or text.shape[0] != batch
            or text.shape[-1] != self.config.text_dim
            or not text.shape[-2]
            or frames % groups
        ):
            raise UsageError(
                f"text: expected [{batch}, l, {self.config.text_dim}] or [{batch}, g, l, "
                f"{self.config.text_dim}] with g dividing {frames} frames, got {list(text.shape)}"
            )
        if chunk_frames < 1:
            raise UsageError(f"chunk_frames: expected at least 1, got {chunk_frames}")

    @staticmethod
    def _mask(
        attend: str | Tensor, frames: int, tokens: int, chunk_frames: int, device: torch.device
    ) -> Tensor | None:
        if isinstance(attend, Tensor):
            reads = attend
        elif attend == "full":
            return None
        elif attend == "causal":
            chunk = torch.arange(frames, device=device) // chunk_frames
            reads = chunk[:, None] >= chunk[None, :]
        else:
            raise UsageError(f'attend: expected "full", "causal" or a bool tensor, got {attend!r}')
        reads = reads.repeat_interleave(tokens, -1).repeat_interleave(tokens, -2)
        return reads[:, None] if reads.dim() == 3 else reads

    # -- paged ---------------------------------------------------------------------------

    def begin(
        self,
        latents: Tensor,
        timesteps: Tensor,
        frame_positions: Tensor,
        text: TextContext,
        time: tuple[Tensor, Tensor] | None = None,
        rope: Tensor | None = None,
    ) -> SlotState:
        """Embed the slots of a round: latents [s, c, f, h, w], timesteps and positions [s, f].

        `time` and `rope` are what `embed_time` and `rope_table` give for them, where that is known already.
        """
        grid = latents.shape[3] // self.config.patch[1], latents.shape[4] // self.config.patch[2]
        embedded, modulation = self.embed_time(timesteps) if time is None else time
        return SlotState(
            hidden=self.embed_patches(latents),
            modulation=modulation,
            time=embedded,
            rope=rope_table(frame_positions, *grid, self.config.head_dim) if rope is None else rope,
            text=text,
            latents=latents,
            timesteps=timesteps,
        )

    def project(self, state: SlotState, layer: int, pages: PageView) -> Tensor:
        """First half of a layer: project, norm, rotate, write K/V to pages; returns q [s, t, h, d]."""
        block = self.layer(layer)
        written = (
            state.rope,
            pages.written_keys(layer),
            pages.v_pages[layer],
            pages.write_ids,
            self.config.eps,
            pages.unroped_pages[layer] if pages.unroped_pages else None,
            pages.unroped_ids,
        )
        if block.runs_whole:
            modulation = state.modulation + block.modulation
            q = ops.block_queries(state.hidden, modulation, block.query_weights(), *written)
        else:
            attn = block.self_attn
            n = self.attention_input(state, layer)
            q = ops.qkv_page_write(
                attn.q(n), attn.k(n), attn.v(n), attn.norm_q.weight, attn.norm_k.weight, *written
            )
        pages.seal_keys(layer)
        return q

    def attend(self, state: SlotState, layer: int, q: Tensor, pages: PageView) -> None:
        """Second half of a layer: read the context pages and update the hidden state."""
        keys, context = pages.read_keys(layer), (pages.v_pages[layer], pages.read_table, pages.read_lengths)
        if isinstance(keys, QuantizedKeyPages):
            out = ops.paged_attention_int8(q, keys, *context)
        else:
            out = ops.paged_attention(q, keys, *context)
        self.take_attended(state, layer, out)

    def attention_input(self, state: SlotState, layer: int) -> Tensor | QuantizedTokens:
        """Hidden state of a layer, normed and modulated, as its projections take it."""
        block = self.layer(layer)
        shift, scale = (state.modulation[:, :, :2] + block.modulation[:, :2]).unbind(2)
        return block.modulated(state.hidden, shift, scale)

    def take_attended(self, state: SlotState, layer: int, attended: Tensor) -> None:
        """What follows self-attention in a layer: `attended` [s, t, h, d] updates the hidden state."""
        block, text = self.layer(layer), (state.text.keys[layer], state.text.values[layer])
        modulation = state.modulation + block.modulation
        if block.runs_whole:
            state.hidden = ops.block_output(
                attended, state.hidden, modulation, block.output_weights(), *text, self.config.eps
            )
            return
        gate1, shift2, scale2, gate2 = modulation[:, :, 2:].unbind(2)
        x = block.cross(block.self_attn.o(attended.flatten(-2), residual=state.hidden, gate=gate1), *text)
        state.hidden = block.ffn(block.modulated(x, shift2, scale2), residual=x, gate=gate2)

    def finish(self, state: SlotState) -> Tensor:
        """Prediction [s, c, f, h, w] of the head, `config.prediction`."""
        frames, height, width = state.latents.shape[2:]
        return self.unpatchify(self.head(state.hidden, state.time), frames, height, width)

    def to_x0(self, prediction: Tensor, latents: Tensor, timesteps: Tensor) -> Tensor:
        """Clean-latent estimate x0 = x_t - sigma * v, in float64 as the published samplers do."""
        if self.config.prediction == "x0":
            return prediction
        sigma = (timesteps.to(torch.float64) / 1000)[:, None, :, None, None]
        return (latents.to(torch.float64) - sigma * prediction.to(torch.float64)).to(latents.dtype)

    def forward_paged(
        self,
        latents: Tensor,
        timesteps: Tensor,
        frame_positions: Tensor,
        text: TextContext,
        pages: PageView,
    ) -> Tensor:
        """Prediction of the slots of one round, [s, c, f, h, w]; K/V are written to `pages`."""
        state = self.begin(latents, timesteps, frame_positions, text)
        for layer in range(self.config.layers):
            self.attend(state, layer, self.project(state, layer, pages), pages)
        return self.finish(state)
