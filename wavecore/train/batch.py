"""The tensors of one training step."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

CHUNK_LATENTS = 3


@dataclass
class Batch:
    """Tensors of one step.

    Attributes
    ----------
    noisy, target : Tensor [b, c, f, h, w]
    timesteps : Tensor [b, f]
    weight : Tensor [b, 1, f, h, w]
        Of each latent pixel in the loss.
    prompts : list of str
        Distinct ones.
    prompt_of : Tensor int64 [b, g]
        Index into `prompts` of each of g equal parts of a clip.
    chunk_frames : int
        Latents that read each other; later ones are not read.
    """

    noisy: Tensor
    target: Tensor
    timesteps: Tensor
    weight: Tensor
    prompts: list[str]
    prompt_of: Tensor
    chunk_frames: int = CHUNK_LATENTS
