"""Training as a live source is restyled: any motion, noise after it, the context of a stream batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from wavecore.models.dit import CausalWanDiT
from wavecore.models.sprites import SPRITES_DEFAULTS
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import STRIDE, SpritesVAE
from wavecore.restyling import motion_noise
from wavecore.rounds import shifted
from wavecore.sprites.caption import caption
from wavecore.sprites.world import Place, Track, random_motion, random_place, random_scene, render_moving
from wavecore.train.batch import Batch
from wavecore.train.clips import draw_scenes, encode_frames, subject_mask
from wavecore.train.noise import SHIFT

LIVE_LATENTS = 8
SPAN = 0.4  # by how much full motion lowers the noise: more than a controller, chosen afterwards, will
AROUND = 0.1  # of that noise, to either side
EARLIER_PASS = 1 / 2  # share of batches that the model has denoised once already


@dataclass
class LiveClip:
    """A source in any motion, and what its prompt makes of it.

    Attributes
    ----------
    latents, source : Tensor float16 [c, n, h, w]
        What the prompt asks for, and what is seen.
    subject : Tensor bool [n, h, w]
        Latent pixels that the subject touches.
    prompt : str
        Says nothing of motion.
    strength : float
        Share of noise after the source's motion.
    """

    latents: Tensor
    source: Tensor
    subject: Tensor
    prompt: str
    strength: float


@torch.no_grad()
def make_live_clip(vae: SpritesVAE, generator: np.random.Generator) -> LiveClip:
    """Draw, render and encode one clip; half of the sources have the background that the prompt asks for."""
    (wanted,), (unsaid,) = draw_scenes(generator, 1, switch=0)
    seen = random_scene(generator, None)
    if generator.random() < 1 / 2:
        seen = replace(seen, background=wanted.background)
    from_start = bool(generator.random() < 1 / 2)
    place = Place() if from_start else random_place(generator)
    count = STRIDE * LIVE_LATENTS - (STRIDE - 1) * from_start
    subject, scenery = random_motion(generator)
    frames, centre = render_moving(wanted, subject, scenery, count, place)
    source = encode_frames(vae, render_moving(seen, subject, scenery, count, place)[0], from_start)
    noise = motion_noise(SPRITES_DEFAULTS, span=SPAN)
    motion = float(source.diff(dim=1).square().mean((0, 2, 3)).sqrt().max())
    return LiveClip(
        encode_frames(vae, frames, from_start).half(),
        source.half(),
        subject_mask(Track([wanted] * count, centre), from_start),
        caption(wanted, generator, unsaid, motion=False),
        noise.highest - noise.span * min(1.0, motion / noise.scale),
    )


def live_batches(
    vae: SpritesVAE,
    dit: CausalWanDiT,
    text_encoder: SpritesTextEncoder,
    latents: int,
    pool: int,
    subject_weight: float,
    generator: np.random.Generator,
) -> Iterator[Batch]:
    """Endless batches of about so many latents, from a pool of clips that is renewed all the time."""
    count = max(1, latents // LIVE_LATENTS)
    clips: deque[LiveClip] = deque(maxlen=max(pool, 4 * count))
    while True:
        for _ in range(2 if clips else 4 * count):
            clips.append(make_live_clip(vae, generator))
        chosen = generator.choice(len(clips), count, replace=False)
        yield _batch([clips[i] for i in chosen], dit, text_encoder, subject_weight, generator)


@torch.no_grad()
def _batch(
    clips: list[LiveClip],
    dit: CausalWanDiT,
    text_encoder: SpritesTextEncoder,
    subject_weight: float,
    generator: np.random.Generator,
) -> Batch:
    """Every latent a chunk, all of a clip at one noise level: what a row of a stream batch reads."""
    target = torch.stack([clip.latents for clip in clips]).float()
    source = torch.stack([clip.source for clip in clips]).float()
    strength = np.array([clip.strength for clip in clips]) + generator.uniform(-AROUND, AROUND, len(clips))
    weight = 1 + (subject_weight - 1) * torch.stack([clip.subject for clip in clips]).float()[:, None]

    def noised(visible: Tensor, level: NDArray[np.float64]) -> Batch:
        sigma = torch.from_numpy(level).float()
        at = sigma[:, None, None, None, None]
        return Batch(
            (1 - at) * visible + at * torch.randn_like(visible),
            target,
            1000 * sigma[:, None].expand(-1, target.shape[2]),
            weight,
            [clip.prompt for clip in clips],
            torch.arange(len(clips))[:, None],
            chunk_frames=1,
        )

    batch = noised(source, strength)
    if generator.random() >= EARLIER_PASS:
        return batch
    raw = strength / (SHIFT - (SHIFT - 1) * strength)  # the timestep before the shift
    later = np.array([shifted(s, SHIFT) for s in raw * generator.uniform(0.2, 0.8, len(clips))])
    text = text_encoder(batch.prompts)[batch.prompt_of]
    return noised(dit.predict(batch.noisy, batch.timesteps, text, "causal", 1), later)
