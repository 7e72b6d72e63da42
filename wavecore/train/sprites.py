"""The stages of training the sprites model, in one folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from wavecore.errors import InputError
from wavecore.media import save_contact_sheet
from wavecore.models.bundle import StreamModel
from wavecore.models.dit import CausalWanDiT
from wavecore.models.sprites import BIDIRECTIONAL_FILE, SPRITES_FILE, load_sprites, save_sprites
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.pipeline import Pipeline
from wavecore.sprites.caption import plain_caption
from wavecore.sprites.world import random_scene
from wavecore.train.bidirectional import (
    JOINT_LATENTS,
    LEARNING_RATE,
    MATRIX_LEARNING_RATE,
    BidirectionalTraining,
)
from wavecore.train.codec import RefinementTraining, fit_linear
from wavecore.train.denoiser import SPRITES_DIT, DenoiserSettings, DenoiserTraining
from wavecore.train.log import OnLog, ignore

PREVIEW_CLIPS = 8
PREVIEW_EVERY = 1000  # steps


class SpritesTraining:
    """Train codec and denoiser and write one weights file.

    Every stage resumes from its checkpoint in `folder` and can be run again to go on.

    Parameters
    ----------
    folder : Path
        Made when it is not there.
    seed : int
        Of scenes and noise.
    on_log : callable
        Told every row of the logs.
    """

    def __init__(self, folder: Path, seed: int = 0, on_log: OnLog = ignore) -> None:
        self.folder, self.seed, self.on_log = folder, seed, on_log
        folder.mkdir(parents=True, exist_ok=True)
        self._initial: StreamModel | None = None

    def begin_with(self, weights: Path | None) -> None:
        """Let new runs go on from a weights file, the one in the package when None."""
        self._initial = load_sprites(weights)

    def codec(self, minutes: float) -> None:
        """Fit the linear code, then train the decoder's refinement for `minutes`."""
        vae = SpritesVAE()
        if not self._linear.exists() and self._initial is not None:
            torch.save(self._initial.vae.state_dict(), self._linear)  # type: ignore[attr-defined]
        if not self._linear.exists():
            torch.manual_seed(self.seed)
            fit_linear(vae, np.random.default_rng([self.seed, 5]))
            torch.save(vae.state_dict(), self._linear)
        vae.load_state_dict(torch.load(self._linear, weights_only=True))
        RefinementTraining(self.folder, vae, minutes, self.seed).run(self.on_log)

    def denoiser(self, minutes: float) -> None:
        """Train the transformer and its text encoder until `minutes` are used in all.

        Every `PREVIEW_EVERY` steps the weights so far and a preview of them are exported.
        """
        settings = DenoiserSettings(minutes=minutes, seed=self.seed)
        training = DenoiserTraining(self.folder, self._vae(), settings, self._initial_parts())

        def log_and_preview(row: dict[str, Any]) -> None:
            self.on_log(row)
            if row["step"] % PREVIEW_EVERY == 0:
                training.save()
                self.export()

        training.run(log_and_preview)

    def bidirectional(self, minutes: float) -> Path:
        """Train the variant that samples a long window jointly; returns its weights file.

        It goes on from the causal weights given to `begin_with`, whose VAE it keeps.
        """
        if self._initial is not None and not (self.folder / "vae.pt").exists():
            torch.save(self._initial.vae.state_dict(), self.folder / "vae.pt")  # type: ignore[attr-defined]
        settings = DenoiserSettings(
            minutes=minutes,
            seed=self.seed,
            matrix_learning_rate=MATRIX_LEARNING_RATE,
            learning_rate=LEARNING_RATE,
        )
        BidirectionalTraining(self.folder, self._vae(), settings, self._initial_parts()).run(self.on_log)
        path = self.folder / BIDIRECTIONAL_FILE
        self._save(path, JOINT_LATENTS)
        return path

    def export(self) -> Path:
        """Write the averaged weights and the VAE as `sprites.safetensors`, with a preview beside it."""
        if not (self.folder / "ema.pt").exists():
            raise InputError(
                f"{self.folder / 'ema.pt'}: no such file, expected the denoiser stage to have run"
            )
        path = self.folder / SPRITES_FILE
        self._save(path)
        self._preview(path)
        return path

    def _initial_parts(self) -> dict[str, Tensor] | None:
        if self._initial is None:
            return None
        parts = {"dit": self._initial.dit, "text_encoder": self._initial.encode_text}
        return nn.ModuleDict(parts).state_dict()  # type: ignore[arg-type]

    def _save(self, path: Path, joint_latents: int | None = None) -> None:
        """Write the averaged weights and the VAE as one file."""
        dit, text_encoder = CausalWanDiT(SPRITES_DIT), SpritesTextEncoder(SPRITES_DIT.text_dim)
        averaged = torch.load(self.folder / "ema.pt", weights_only=True)
        nn.ModuleDict({"dit": dit, "text_encoder": text_encoder}).load_state_dict(averaged)
        save_sprites(path, dit, self._vae(), text_encoder, torch.bfloat16, joint_latents)

    @property
    def _linear(self) -> Path:
        return self.folder / "vae_linear.pt"

    def _vae(self) -> SpritesVAE:
        refined = self.folder / "vae.pt"
        source = refined if refined.exists() else self._linear
        if not source.exists():
            raise InputError(f"{source}: no such file, expected the codec stage to have run")
        vae = SpritesVAE()
        vae.load_state_dict(torch.load(source, weights_only=True))
        return vae

    def _preview(self, weights: Path) -> None:
        """One row of eight frames for each of a few held-out prompts."""
        pipe = Pipeline(load_sprites(weights))
        generator = np.random.default_rng(self.seed)
        rows = []
        for index in range(PREVIEW_CLIPS):
            prompt = plain_caption(random_scene(generator, held_out=True))
            with pipe.session(prompt, seed=index, seconds=5) as session:
                frames = np.concatenate([group.frames for group in session])
            rows.extend(frames[np.linspace(0, len(frames) - 1, 8).astype(int)])
        save_contact_sheet(self.folder / "preview.png", rows, 8)
