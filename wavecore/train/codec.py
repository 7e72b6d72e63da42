"""Training of the sprites VAE: principal components first, then the refinement."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from wavecore.models.sprites_vae import STRIDE, SpritesVAE
from wavecore.sprites.world import random_place, random_scene, render, track
from wavecore.train.clips import to_pixels


def random_groups(generator: np.random.Generator, clips: int, groups: int = 4) -> torch.Tensor:
    """Frame groups [clips, groups, 3, 4, h, w] in [-1, 1] of random scenes."""
    return torch.stack([_groups(generator, groups) for _ in range(clips)])


def _groups(generator: np.random.Generator, groups: int) -> torch.Tensor:
    truth = track([random_scene(generator)] * (STRIDE * groups), random_place(generator))
    return to_pixels(render(truth))[0].unflatten(1, (groups, STRIDE)).transpose(0, 1)


def fit_linear(vae: SpritesVAE, generator: np.random.Generator, clips: int = 160) -> NDArray[np.float64]:
    """Set encoder and decoder to the principal components of pixel blocks.

    Each channel is scaled by the square root of its standard deviation, and all of them to
    unit mean variance: coarse structure then stands out of the noise earlier than detail,
    which few-step sampling needs, without the dominance that raw components would have.

    Returns
    -------
    ndarray [channels]
        Standard deviation of each latent channel.
    """
    blocks = vae.fold(random_groups(generator, clips).flatten(0, 1)).flatten(0, 2).double()
    mean = blocks.mean(0)
    centred = blocks - mean
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(centred))
    basis = vectors[:, -vae.channels :].flip(1)
    deviation = values[-vae.channels :].flip(0).sqrt()
    scale = deviation.sqrt() * deviation.mean().sqrt()
    latent_deviation = deviation / scale
    scale = scale * latent_deviation.square().mean().sqrt()
    with torch.no_grad():
        vae.encoder.weight.copy_((basis / scale).T)
        vae.encoder.bias.copy_(-(mean @ basis) / scale)
        vae.decoder.weight.copy_(basis * scale)
        vae.decoder.bias.copy_(mean)
        for parameter in vae.refine[-1].parameters():
            parameter.zero_()
    return (deviation / scale).numpy()
