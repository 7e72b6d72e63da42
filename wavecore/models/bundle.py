"""A model with everything a stream of it needs: transformer, VAE, text encoder and their defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn

from wavecore.arguments import choice, whole
from wavecore.errors import UsageError
from wavecore.models.dit import CausalWanDiT
from wavecore.models.stream import StreamingVAE
from wavecore.rounds import (
    NoiseLevel,
    RoundsKind,
    Rules,
    Sequential,
    StreamBatch,
    Wavefront,
    nearest_levels,
    warped_levels,
)
from wavecore.rounds.noise import TRAINING_STEPS


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
    first_chunk_frames : int, optional
        Latent frames of the first chunk where they differ.
    anchor_chunks : int
        Chunks from the beginning of the stream that stay in the context.
    history : int or None
        Clean chunks in the context of a wavefront besides the live store; None for what the
        window of Wan leaves.
    sequential_history : int
        Clean chunks besides the anchor in the context of a sequential stream.
    store_history : int
        Clean chunks in the context of the store pass.
    stream_history : int
        Chunks besides anchor and itself in the context of a row of a stream batch.
    joint_latents : int or None
        Latents that the model samples jointly, as a clip of its own whose beginning may be given; None for
        a causal model, which continues a context.
    strength : float
        Share of noise with which restyling begins.
    noise_span, noise_scale : float
        By how much full motion of a source lowers that share, and the difference of consecutive latents (RMS)
        that counts as full motion; left out, those of StreamDiffusionV2.
    rounds : "wavefront", "sequential" or "stream_batch"
        Order of the work it was distilled for.
    timesteps : tuple of float, optional
        The timesteps it was distilled to, where they are not evenly spaced raw timesteps under the
        shift; fewer steps keep the first ones.
    """

    size: tuple[int, int]
    fps: float
    shift: float
    chunk_frames: int = 3
    first_chunk_frames: int | None = None
    anchor_chunks: int = 1
    history: int | None = None
    sequential_history: int = 5
    store_history: int = 5
    stream_history: int = 2
    joint_latents: int | None = None
    strength: float = 0.9
    noise_span: float = 0.1
    noise_scale: float = 0.2
    rounds: RoundsKind = "wavefront"
    timesteps: tuple[float, ...] | None = None

    def rules(self, rounds: RoundsKind | None, steps: int) -> Rules:
        """Rounds as the model was trained to stream.

        Parameters
        ----------
        rounds : "wavefront", "sequential", "stream_batch" or None
            Their kind; the one that the model was distilled for when None.
        steps : int
            Denoising steps.
        """
        whole("steps", steps, 1)
        if steps > TRAINING_STEPS:
            raise UsageError(f"steps: expected at most {TRAINING_STEPS}, as in training, got {steps}")
        rounds = self.rounds if rounds is None else rounds
        choice("rounds", rounds, get_args(RoundsKind))
        shared: dict[str, Any] = {
            "steps": steps,
            "chunk_frames": self.chunk_frames,
            "first_chunk_frames": self.first_chunk_frames,
            "anchor_chunks": self.anchor_chunks,
        }
        if rounds == "stream_batch":
            return StreamBatch(**shared, history=self.stream_history)
        shared["store_history"] = self.store_history
        if rounds == "sequential":
            return Sequential(**shared, history=self.sequential_history)
        return Wavefront(**shared, history=self.history)

    def levels(self, steps: int, strength: float = 1.0) -> tuple[NoiseLevel, ...]:
        """Noise level of each stage.

        Evenly spaced raw timesteps from `strength` down, shifted; or, of a model that was distilled
        to a list of timesteps, the first of that list, whatever the strength.
        """
        whole("steps", steps, 1)
        if self.timesteps is not None:
            if steps > len(self.timesteps):
                raise UsageError(
                    f"steps: expected at most {len(self.timesteps)} with this model, got {steps}"
                )
            return nearest_levels(self.timesteps[:steps], self.shift)
        # The shift, solved for the raw step.
        first = 1000 * strength / (self.shift - (self.shift - 1) * strength)
        return warped_levels([first * (steps - i) / steps for i in range(steps)], self.shift)


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

    def latents(self, num_frames: int) -> int:
        """Latents of a stream of so many frames: of one frame the first, of several each after it."""
        return 1 + -(-(num_frames - 1) // self.vae.temporal_factor)

    def to(self, device: torch.device | str, dtype: torch.dtype | None = None) -> StreamModel:
        """Move every part, as `torch.nn.Module.to` does; returns the model itself."""
        text = getattr(self.encode_text, "model", self.encode_text)  # Wan's wraps a module
        for part in (self.dit, self.vae, text):
            if isinstance(part, nn.Module):
                part.to(device, dtype)
        return self
