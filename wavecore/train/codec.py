"""Training of the sprites VAE: principal components first, then the refinement."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from wavecore.interrupts import uninterrupted
from wavecore.models.sprites_vae import STRIDE, SpritesVAE
from wavecore.source import to_pixels
from wavecore.sprites.world import random_place, random_scene, render, track
from wavecore.train.log import LOG_EVERY, OnLog, ignore

LEARNING_RATE = 8e-4


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


class RefinementTraining:
    """Resumable training of the decoder's refinement; encoder and linear decoder stay as they are.

    The decoder is to bring latents that a denoiser made to clean frames, not only exact ones, so it
    sees latents with a little noise.

    Parameters
    ----------
    folder : Path
        Gets `vae.pt` (weights), `vae_state.pt` (to resume) and `vae_log.jsonl`.
    vae : SpritesVAE
        With its linear part fitted.
    minutes : float
        Wall-clock length.
    """

    def __init__(self, folder: Path, vae: SpritesVAE, minutes: float = 20.0, seed: int = 0) -> None:
        self.folder, self.vae, self.minutes, self.seed = folder, vae, minutes, seed
        folder.mkdir(parents=True, exist_ok=True)
        self.optimizer = torch.optim.AdamW(vae.refine.parameters(), lr=LEARNING_RATE, weight_decay=0.0)
        self.step, self.seconds = 0, 0.0
        if (folder / "vae_state.pt").exists():
            state = torch.load(folder / "vae_state.pt", weights_only=True)
            vae.load_state_dict(state["vae"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.step, self.seconds = state["step"], state["seconds"]

    def run(self, on_log: OnLog = ignore, clips: int = 4, groups: int = 4, save_every: float = 120.0) -> None:
        """Train until the time budget is used."""
        generator = np.random.default_rng([self.seed, self.step])
        saved, logged = self.seconds, self.step
        try:
            while self.seconds < 60 * self.minutes:
                began = time.perf_counter()
                loss = self._step(random_groups(generator, clips, groups))
                self.step += 1
                self.seconds += time.perf_counter() - began
                if self.step % LOG_EVERY == 0:
                    on_log(self._log(loss))
                    logged = self.step
                if self.seconds - saved > save_every:
                    self.save()
                    saved = self.seconds
            if self.step > logged:  # a run may be shorter than the way to the next row
                on_log(self._log(loss))
        finally:  # an interrupt loses at most the step it falls into
            with uninterrupted():
                self.save()

    def _log(self, loss: float) -> dict[str, Any]:
        row = {"step": self.step, "minutes": round(self.seconds / 60, 2), "loss": loss}
        with (self.folder / "vae_log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        return row

    def _step(self, video: torch.Tensor) -> float:
        clips = len(video)
        with torch.no_grad():
            latents = self.vae.encode_group(video.flatten(0, 1)).unflatten(0, (clips, -1))
            latents = latents + 0.1 * torch.rand(clips, 1, 1, 1, 1) * torch.randn_like(latents)
            previous = torch.cat([torch.zeros_like(latents[:, :1]), latents[:, :-1]], 1)
        decoded = self.vae.decode_group(latents.flatten(0, 1), previous.flatten(0, 1))
        error = decoded - video.flatten(0, 1)
        loss = error.square().mean() + 0.1 * error.abs().mean()
        progress = self.seconds / (60 * self.minutes)
        for group in self.optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(1.0, (self.step + 1) / 50, max(0.02, 2 * (1 - progress)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.vae.refine.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def save(self) -> None:
        """Write weights and state; a reader never sees half a file."""
        state = {
            "vae": self.vae.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
            "seconds": self.seconds,
        }
        for name, value in (("vae_state.pt", state), ("vae.pt", self.vae.state_dict())):
            torch.save(value, self.folder / f"{name}.part")
            (self.folder / f"{name}.part").replace(self.folder / name)
