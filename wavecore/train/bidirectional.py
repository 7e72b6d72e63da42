"""Training of the bidirectional sprites variant: a window sampled jointly, whose beginning may be given."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from wavecore.models.sprites_vae import STRIDE, SpritesVAE
from wavecore.source import to_pixels
from wavecore.sprites.caption import caption
from wavecore.sprites.world import Place, Scene, random_change, random_place, random_scene, render, track
from wavecore.train.batch import CHUNK_LATENTS, Batch
from wavecore.train.clips import encode_frames, subject_mask
from wavecore.train.denoiser import DenoiserSettings, DenoiserTraining, batch_loss
from wavecore.train.noise import FEW_STEP_SIGMAS, independent_sigmas

JOINT_LATENTS = 12  # K
SHORT_LATENTS = 4
MOST_GIVEN = 4  # retained latents of the keyframe adapter
MATRIX_LEARNING_RATE = 2e-3  # lower peaks than for a new model: the causal weights are a good beginning
LEARNING_RATE = 7.5e-4
_RENEWED = 2  # clips a step


@dataclass
class JointClip:
    """A window of K latents whose first `given` latents are context.

    Attributes
    ----------
    latents : Tensor float16 [c, K, h, w]
    subject : Tensor bool [K, h, w]
        Latent pixels that the subject touches.
    scene : Scene
        What the prompt says, from latent `given` on; before, the scene may be another.
    given : int
        0 at the beginning of a stream; otherwise one latent or a group of latents.
    """

    latents: Tensor
    subject: Tensor
    scene: Scene
    given: int


def make_joint_clip(vae: SpritesVAE, generator: np.random.Generator) -> JointClip:
    """Draw, render and encode one clip.

    A quarter begin a stream. A quarter begin with a single image (the last frame of their first latent, as
    the boundary-image adapter encodes it), the others with 1 to `MOST_GIVEN` latents. What is given shows
    another scene in half of them, as after a new prompt.
    """
    kind = generator.random()
    from_start, image = kind < 1 / 4, 1 / 4 <= kind < 1 / 2
    given = 0 if from_start else 1 if image else int(generator.integers(1, MOST_GIVEN + 1))
    before = scene = random_scene(generator)
    if given and generator.random() < 1 / 2:
        scene = random_change(before, generator)
    scenes = [before] * (STRIDE * given) + [scene] * (STRIDE * (JOINT_LATENTS - given))
    truth = track(
        scenes[STRIDE - 1 :] if from_start else scenes, Place() if from_start else random_place(generator)
    )
    frames = render(truth)
    latents = encode_frames(vae, frames, from_start)
    if image:
        boundary = to_pixels(frames[STRIDE - 1 : STRIDE])
        latents[:, 0] = vae.encode_group(boundary)[0]
    return JointClip(latents.half(), subject_mask(truth, from_start), scene, given)


def make_joint_batch(
    clips: list[JointClip], latents: int, settings: DenoiserSettings, generator: np.random.Generator
) -> Batch:
    """Noise the first `latents` latents of each clip, except those that are given, and write captions.

    All latents of a clip have the same noise level, since they are sampled jointly.
    """
    target = torch.stack([clip.latents[:, :latents] for clip in clips]).float()
    subject = torch.stack([clip.subject[:latents] for clip in clips]).float()
    given = torch.tensor([clip.given for clip in clips])
    made = torch.arange(latents) >= given[:, None]
    drawn = [_sigma(generator, clip.given) for clip in clips]
    sigmas = torch.tensor(drawn, dtype=torch.float32)[:, None] * made
    level = sigmas[:, None, :, None, None]
    # What is given carries small errors when a model has made it itself.
    errors = 0.1 * torch.rand(len(clips))[:, None] * ~made
    noisy = (1 - level) * target + (level + errors[:, None, :, None, None]) * torch.randn_like(target)
    weight = (1 + (settings.subject_weight - 1) * subject) * made[:, :, None, None]
    dropped = generator.random(len(clips)) < settings.text_drop
    prompts = [
        "" if drop else caption(clip.scene, generator) for clip, drop in zip(clips, dropped, strict=True)
    ]
    prompt_of = torch.arange(len(clips))[:, None]
    return Batch(noisy, target, 1000 * sigmas, weight[:, None], prompts, prompt_of)


def _sigma(generator: np.random.Generator, given: int) -> float:
    """A few-step level, or anything in between; mostly noise at a stream's start, where words say most."""
    if not given:
        return float(generator.choice(FEW_STEP_SIGMAS, p=(0.45, 0.25, 0.18, 0.12)))
    return float(independent_sigmas(generator, 1, clean=0.0)[0]) or 1.0


class BidirectionalTraining(DenoiserTraining):
    """Resumable training of the joint model, from causal weights; see `DenoiserTraining`."""

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Endless batches; four in five of whole windows, the others of short ones."""
        settings = self.settings
        source = np.random.default_rng(settings.seed + 7919 * (self.step + 1))
        clips: deque[JointClip] = deque(maxlen=settings.pool)
        for _ in range(2 * settings.chunks):
            clips.append(self._clip(source))
        while True:
            for _ in range(_RENEWED):
                clips.append(self._clip(source))
            length = JOINT_LATENTS if generator.random() < 4 / 5 else SHORT_LATENTS
            count = settings.chunks * CHUNK_LATENTS // length
            fitting = [clip for clip in clips if clip.given < length]
            chosen = generator.choice(len(fitting), min(count, len(fitting)), replace=False)
            yield make_joint_batch([fitting[i] for i in chosen], length, settings, generator)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[float, float]]:
        """Error where all latents of a window read each other."""
        return batch_loss(self.dit, self.text_encoder, batch, "full")

    @torch.no_grad()
    def _clip(self, source: np.random.Generator) -> JointClip:
        return make_joint_clip(self.vae, source)
