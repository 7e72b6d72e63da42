"""Clips of the sprites world as training data: latents, scenes and subject masks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wavecore.models.sprites_vae import BLOCK, STRIDE, SpritesVAE
from wavecore.source import to_pixels
from wavecore.sprites.world import (
    CANVAS,
    RADIUS,
    Place,
    Scene,
    Track,
    random_change,
    random_place,
    random_scene,
    render,
    track,
)
from wavecore.train.batch import CHUNK_LATENTS

Unsaid: TypeAlias = Literal["colour", "shape"] | None

CHUNKS = 6  # clean history, live store and four denoising stages
OTHER_LOOK = 0.4  # share of clips in which only the text, not what is seen through the noise, tells the look
SWITCH = 0.25  # probability of a new prompt at a chunk


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
    unsaid : list of "colour", "shape" or None
        What the caption of each chunk's scene leaves out.
    from_start : bool
        Whether the clip begins a stream (its first latent holds one frame).
    """

    latents: Tensor
    source: Tensor
    subject: Tensor
    scenes: list[Scene]
    unsaid: list[Unsaid]
    from_start: bool

    def window(self, first: int, count: int) -> Clip:
        """`count` chunks from chunk `first` on."""
        frames = slice(first * CHUNK_LATENTS, (first + count) * CHUNK_LATENTS)
        return Clip(
            self.latents[:, frames],
            self.source[:, frames],
            self.subject[frames],
            self.scenes[first : first + count],
            self.unsaid[first : first + count],
            self.from_start and first == 0,
        )


def draw_scenes(
    generator: np.random.Generator, chunks: int, switch: float
) -> tuple[list[Scene], list[Unsaid]]:
    """Scene of each chunk, new with probability `switch`, and what its caption leaves out.

    Where colour or shape is left out, every pair occurs. Otherwise each colour would tell that its
    held-out shape is impossible, and a model that has learned this does not compose the two words.
    """
    scenes: list[Scene] = []
    unsaid: list[Unsaid] = []
    for chunk in range(chunks):
        if chunk and generator.random() >= switch:
            scenes.append(scenes[-1])
            unsaid.append(unsaid[-1])
            continue
        left_out: Unsaid = (None, None, None, "colour", "shape")[int(generator.integers(5))]
        held_out = False if left_out is None else None
        scenes.append(
            random_change(scenes[-1], generator, held_out) if chunk else random_scene(generator, held_out)
        )
        unsaid.append(left_out)
    return scenes, unsaid


def frames_of(scenes: list[Scene], from_start: bool) -> list[Scene]:
    """Scene of each frame: 12 frames a chunk, the first latent of a stream has one frame only."""
    frames = [scene for scene in scenes for _ in range(CHUNK_LATENTS * STRIDE)]
    return frames[STRIDE - 1 :] if from_start else frames


def encode_frames(vae: SpritesVAE, frames: NDArray[np.uint8], from_start: bool) -> Tensor:
    """Latents [c, n, h, w] of frames; away from a stream's start every latent has four frames."""
    if from_start:
        frames = np.concatenate([np.repeat(frames[:1], STRIDE - 1, 0), frames])
    # One latent at a time: large blocks of a length that varies would fragment the heap for ever.
    groups = np.split(frames, len(frames) // STRIDE)
    return torch.stack([vae.encode_group(to_pixels(group))[0] for group in groups], 1)


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


def make_clip(
    vae: SpritesVAE, generator: np.random.Generator, chunks: int = CHUNKS, from_start: bool = False
) -> Clip:
    """Draw, render and encode one clip; `OTHER_LOOK` of them show another look as their source."""
    scenes, unsaid = draw_scenes(generator, chunks, SWITCH)
    place = Place() if from_start else random_place(generator)
    truth = track(frames_of(scenes, from_start), place)
    latents = encode_frames(vae, render(truth), from_start)
    source = latents
    if generator.random() < OTHER_LOOK:
        look = random_scene(generator)
        changed = [
            Scene(look.shape, look.colour, look.background, s.motion, s.speed, s.camera) for s in truth.scenes
        ]
        source = encode_frames(vae, render(Track(changed, truth.centre, truth.pan)), from_start)
    return Clip(latents.half(), source.half(), subject_mask(truth, from_start), scenes, unsaid, from_start)


class ClipPool:
    """Clips that are renewed while training runs, so that rendering is not the bottleneck.

    Beside clips of `CHUNKS` chunks there are streams' first chunks alone. They are cheap, so many
    scenes can be shown there, where words alone say what is seen and where it goes.

    Parameters
    ----------
    vae : SpritesVAE
        Encoder of the frames.
    size : int
        Clips held of each kind.
    seed : int
        Seed of scenes and of sampling.
    """

    def __init__(self, vae: SpritesVAE, size: int, seed: int) -> None:
        self._vae = vae
        self._generator = np.random.default_rng(seed)
        self._clips: deque[Clip] = deque(maxlen=size)
        self._starts: deque[Clip] = deque(maxlen=size)

    @torch.no_grad()
    def grow(self, clips: int = 1, starts: int = 6) -> None:
        """Add clips and first chunks; the oldest leave when the pool is full."""
        for _ in range(clips):
            from_start = bool(self._generator.random() < 0.5)
            self._clips.append(make_clip(self._vae, self._generator, CHUNKS, from_start))
        for _ in range(starts):
            self._starts.append(make_clip(self._vae, self._generator, 1, from_start=True))

    def sample(self, count: int, chunks: int) -> list[Clip]:
        """Windows of `chunks` chunks from `count` different clips.

        Half of them are at a clip's beginning, and three quarters of the windows of one chunk are
        streams' first chunks.
        """
        starts = count * 3 // 4 if chunks == 1 else 0
        windows = self._choose(self._starts, starts)
        for clip in self._choose(self._clips, count - starts):
            at_beginning = self._generator.random() < 1 / 2
            first = 0 if at_beginning else int(self._generator.integers(0, CHUNKS - chunks + 1))
            windows.append(clip.window(first, chunks))
        return windows

    def _choose(self, clips: deque[Clip], count: int) -> list[Clip]:
        return [clips[i] for i in self._generator.choice(len(clips), count, replace=False)]
