"""Clips of the sprites world as training data: latents, scenes and subject masks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wavecore.models.sprites_vae import BLOCK, STRIDE, SpritesVAE
from wavecore.source import to_pixels
from wavecore.sprites.world import (
    CANVAS,
    RADIUS,
    Scene,
    Track,
    random_change,
    random_place,
    random_scene,
    random_start,
    render,
    track,
)

CHUNK_LATENTS = 3
CHUNKS = 6  # clean history, live store and four denoising stages


@dataclass
class Clip:
    """One training clip of n latents.

    Attributes
    ----------
    latents : Tensor [c, n, 16, 16]
        What the prompt asks for.
    source : Tensor [c, n, 16, 16]
        The same motion with another look, for restyling; `latents` itself when there is none.
    subject : Tensor bool [n, 16, 16]
        Latent pixels that the subject touches.
    scenes : list of Scene
        Scene of each chunk.
    from_start : bool
        Whether the clip begins a stream (its first latent holds one frame).
    """

    latents: Tensor
    source: Tensor
    subject: Tensor
    scenes: list[Scene]
    from_start: bool

    def window(self, first: int, count: int) -> Clip:
        """`count` chunks from chunk `first` on."""
        frames = slice(first * CHUNK_LATENTS, (first + count) * CHUNK_LATENTS)
        return Clip(
            self.latents[:, frames],
            self.source[:, frames],
            self.subject[frames],
            self.scenes[first : first + count],
            self.from_start and first == 0,
        )


def draw_scenes(generator: np.random.Generator, switch: float) -> list[Scene]:
    """Scene of each chunk; with probability `switch` it changes once at a random chunk."""
    scene = random_scene(generator)
    scenes = [scene] * CHUNKS
    if generator.random() < switch:
        at = int(generator.integers(1, CHUNKS))
        scenes[at:] = [random_change(scene, generator)] * (CHUNKS - at)
    return scenes


def frames_of(scenes: list[Scene], from_start: bool) -> list[Scene]:
    """Scene of each frame: 12 frames a chunk, the first latent of a stream has one frame only."""
    frames = [scene for scene in scenes for _ in range(CHUNK_LATENTS * STRIDE)]
    return frames[STRIDE - 1 :] if from_start else frames


def encode_frames(vae: SpritesVAE, frames: NDArray[np.uint8], from_start: bool) -> Tensor:
    """Latents [c, n, h, w] of frames; away from a stream's start every latent has four frames."""
    pixels = to_pixels(frames)
    if from_start:
        pixels = torch.cat([pixels[:, :, :1].expand(-1, -1, STRIDE - 1, -1, -1), pixels], 2)
    groups = pixels[0].unflatten(1, (-1, STRIDE)).permute(1, 0, 2, 3, 4)
    return vae.encode_group(groups).permute(1, 0, 2, 3)


def subject_mask(truth: Track, from_start: bool) -> Tensor:
    """Which latent pixels [n, 16, 16] the subject touches during a latent's frames."""
    cells = np.arange(CANVAS // BLOCK) * BLOCK + BLOCK / 2

    def near(centre: NDArray[np.float64]) -> NDArray[np.bool_]:
        gap = np.abs(cells[None] - centre[:, None])
        return np.minimum(gap, CANVAS - gap) < RADIUS + BLOCK / 2 + 2

    touched = near(truth.centre[:, 1])[:, :, None] & near(truth.centre[:, 0])[:, None, :]
    if from_start:
        touched = np.concatenate([np.repeat(touched[:1], STRIDE - 1, 0), touched])
    return torch.from_numpy(touched.reshape(-1, STRIDE, *touched.shape[1:]).any(1))


def make_clip(vae: SpritesVAE, generator: np.random.Generator) -> Clip:
    """Draw, render and encode one clip."""
    from_start = bool(generator.random() < 0.5)
    scenes = draw_scenes(generator, switch=0.5)
    place = random_start(generator) if from_start else random_place(generator)
    truth = track(frames_of(scenes, from_start), place)
    latents = encode_frames(vae, render(truth), from_start)
    source = latents
    if generator.random() < 0.2:
        look = random_scene(generator)
        changed = [
            Scene(look.shape, look.colour, look.background, s.motion, s.speed, s.camera) for s in truth.scenes
        ]
        source = encode_frames(vae, render(Track(changed, truth.centre, truth.pan)), from_start)
    return Clip(latents.half(), source.half(), subject_mask(truth, from_start), scenes, from_start)


class ClipPool:
    """A pool of clips that is renewed while training runs, so that rendering is not the bottleneck.

    Parameters
    ----------
    vae : SpritesVAE
        Encoder of the frames.
    size : int
        Clips held.
    seed : int
        Seed of scenes and of sampling.
    """

    def __init__(self, vae: SpritesVAE, size: int, seed: int) -> None:
        self._vae = vae
        self._size = size
        self._generator = np.random.default_rng(seed)
        self._clips: list[Clip] = []
        self._oldest = 0

    def grow(self) -> None:
        """Add a clip, or replace the oldest when the pool is full."""
        with torch.no_grad():
            clip = make_clip(self._vae, self._generator)
        if len(self._clips) < self._size:
            self._clips.append(clip)
        else:
            self._clips[self._oldest] = clip
            self._oldest = (self._oldest + 1) % self._size

    def sample(self, count: int, chunks: int) -> list[Clip]:
        """Windows of `chunks` chunks from `count` different clips; half of them at a clip's beginning."""
        chosen = self._generator.choice(len(self._clips), count, replace=False)
        firsts = self._generator.integers(0, CHUNKS - chunks + 1, count)
        firsts[self._generator.random(count) < 1 / 2] = 0
        return [self._clips[i].window(int(first), chunks) for i, first in zip(chosen, firsts, strict=True)]
