"""A model with everything a stream of it needs: transformer, VAE, text encoder and their defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from wavecore.models.dit import CausalWanDiT
from wavecore.models.stream import StreamingVAE


@dataclass(frozen=True)
class StreamDefaults:
    """How a model was trained to stream.

    Attributes
    ----------
    size : (width, height)
        Pixels.
    fps : float
        Frames a second.
    shift : float
        Timestep shift of the noise schedule.
    chunk_frames : int
        Latent frames of a chunk.
    anchor_chunks : int
        Chunks from the beginning of the stream that stay in the context.
    history : int or None
        Clean chunks in the context of a wavefront besides the live store; None for what the
        window of Wan leaves.
    store_history : int
        The same for the store pass.
    strength : float
        Share of noise with which restyling begins.
    """

    size: tuple[int, int]
    fps: float
    shift: float
    chunk_frames: int = 3
    anchor_chunks: int = 1
    history: int | None = None
    store_history: int = 5
    strength: float = 0.9


@dataclass(frozen=True)
class StreamModel:
    """A model that can stream.

    Attributes
    ----------
    name : str
    dit : CausalWanDiT
    vae : StreamingVAE
    encode_text : callable
        Prompts to features [b, l, text_dim].
    defaults : StreamDefaults
    """

    name: str
    dit: CausalWanDiT
    vae: StreamingVAE
    encode_text: Callable[[list[str]], Tensor]
    defaults: StreamDefaults

    @property
    def device(self) -> torch.device:
        """Where the transformer is, and so where a stream runs."""
        return self.dit.patch_embedding.weight.device

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> StreamModel:
        """Move every part, as `torch.nn.Module.to` does; returns the model itself."""
        text = getattr(self.encode_text, "model", self.encode_text)  # Wan's wraps a module
        for part in (self.dit, self.vae, text):
            if isinstance(part, nn.Module):
                part.to(device, dtype)
        return self
