"""Calls on a bidirectional model: each is a clip of its own, whose beginning is given by what came before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from wavecore.control.speculative import Adapter, BoundaryImage
from wavecore.control.speculative.events import LATENT, PIXELS
from wavecore.errors import WavecoreError
from wavecore.interactive.predictions import Decoder, Made, Prediction, Predictions, inference
from wavecore.models.bundle import StreamModel
from wavecore.placement import renoise
from wavecore.rounds import NoiseLevel, noise
from wavecore.source import to_pixels


class JointGenerator:
    """Samples the K latents of a call jointly; its first ones are clean, at timestep 0, and trimmed.

    What is given depends on the adapter: the encoded last frame before the branch (boundary image), the clean
    latent before it (latent input), or a group of clean latents (keyframes). Only latents and frames that
    are playable, or were, are ever given, nothing that was trimmed or discarded.

    Parameters
    ----------
    model : StreamModel
        Bidirectional.
    adapter : Adapter
    levels : sequence of NoiseLevel
        One per denoising stage.
    seed : int
    size : (width, height)
        Pixels.
    whole_clip : bool
        Report no group before the whole clip is decoded.
    """

    def __init__(
        self,
        model: StreamModel,
        adapter: Adapter,
        levels: Sequence[NoiseLevel],
        seed: int,
        size: tuple[int, int],
        *,
        whole_clip: bool = False,
    ) -> None:
        self.model, self.adapter, self.levels = model, adapter, levels
        self.predictions = Predictions()
        self._seed, self._whole_clip = seed, whole_clip
        factor = model.vae.spatial_factor
        self._latent_size = (size[1] // factor, size[0] // factor)
        self._decoder = Decoder(model.vae)

    def call(self, position: int, groups: int, trimmed: int, prompt: str) -> Iterator[Made]:
        """See `Generator.call`."""
        return inference(self._call(position, groups, trimmed, prompt))

    def _call(self, position: int, groups: int, trimmed: int, prompt: str) -> Iterator[Made]:
        given = self._given(position, trimmed)
        latents = self._sample(position, groups + trimmed, given, prompt)
        state: Any = ()
        ready: list[Made] = []
        for index, latent in enumerate(latents.unbind(1)):
            decoded = self._decoder.decode(latent.clone(), state, prompt)
            state = decoded.after
            if index < trimmed:  # regenerated: only the decoder needs it
                continue
            self.predictions[position + index - trimmed] = decoded
            made = Made(position + index - trimmed, LATENT | PIXELS)
            if self._whole_clip:
                ready.append(made)
            else:
                yield made
        yield from ready

    def _given(self, position: int, trimmed: int) -> Tensor | None:
        """Clean latents [c, trimmed, h, w] that the call begins with: the last that are playable or were."""
        if not trimmed:
            return None
        before = self.predictions.before(position, trimmed)
        if len(before) < trimmed:
            raise WavecoreError(
                f"call at {position}: expected {trimmed} latents before it, got {len(before)}"
            )
        if isinstance(self.adapter, BoundaryImage):
            frame = before[-1].frames[-1:].copy()  # it is read-only
            return self.model.vae.encode(to_pixels(frame).to(self.model.device))[0]
        return torch.stack([prediction.latent for prediction in before], 1)

    def _sample(self, position: int, count: int, given: Tensor | None, prompt: str) -> Tensor:
        """Clean latents [c, count, h, w]; noise depends on seed, position and stage only."""
        dit, device = self.model.dit, self.model.device
        dtype = dit.patch_embedding.weight.dtype
        shape = dit.config.in_channels, count, *self._latent_size
        known = 0 if given is None else given.shape[1]
        text = self.model.encode_text([prompt])
        x0 = torch.zeros(shape, device=device)
        for stage, level in enumerate(self.levels[:-1]):
            epsilon = torch.from_numpy(noise(self._seed, position, stage, shape)).to(device)
            x = renoise(x0, epsilon, level.sigma) if stage else epsilon
            told = torch.full((1, count), level.timestep, dtype=torch.float64, device=device)
            sigmas = torch.full((1, count), 1000 * level.sigma, dtype=torch.float64, device=device)
            if given is not None:
                x[:, :known] = given
                told[:, :known] = sigmas[:, :known] = 0
            prediction = dit.predict(x[None].to(dtype), told, text.to(dtype), "full")
            x0 = dit.to_x0(prediction, x[None], sigmas)[0].float()
            if given is not None:
                x0[:, :known] = given
        return x0

    def splice(self, position: int, groups: int, prompt: str) -> bool:
        """See `Generator.splice`; a joint call is of one piece."""
        return False

    def cut(self, position: int) -> dict[int, Prediction]:
        """See `Generator.cut`."""
        return self.predictions.cut(position)

    def restore(self, shelf: dict[int, Prediction]) -> None:
        """See `Generator.restore`."""
        if shelf:
            self.predictions.cut(min(shelf))
            self.predictions.restore(shelf)

    def discard(self, shelf: dict[int, Prediction]) -> None:
        """See `Generator.discard`; nothing is held but tensors."""

    def release(self, before: int) -> None:
        """See `Generator.release`."""
        self.predictions.forget(before, self.adapter.overlap)

    def close(self) -> None:
        """See `Generator.close`; nothing is held but tensors."""
