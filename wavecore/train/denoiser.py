"""Training of the sprites DiT and its text encoder on mixed noise levels a chunk."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from wavecore.interrupts import uninterrupted
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.sprites.caption import caption
from wavecore.train.batch import CHUNK_LATENTS, Batch
from wavecore.train.clips import Clip, ClipPool
from wavecore.train.live import live_batches
from wavecore.train.log import LOG_EVERY, OnLog, ignore
from wavecore.train.muon import Muon
from wavecore.train.noise import FEW_STEP_SIGMAS, chunk_sigmas

SPRITES_DIT = DiTConfig(
    dim=192, heads=4, layers=6, ffn_dim=768, patch=(1, 4, 4), text_dim=96, frequency_dim=256, prediction="x0"
)

WINDOW_LENGTHS = (1, 2, 3, 6)  # chunks


@dataclass(frozen=True)
class DenoiserSettings:
    """Settings of one training run.

    Attributes
    ----------
    minutes : float
        Wall-clock length, in whole steps; the learning rate decays over the last `decay` of it.
    chunks : int
        Chunks a step: short windows come in larger batches.
    curriculum : tuple of (progress, weights)
        Probability weights of windows of 1, 2, 3 and 6 chunks, from a share of the run on. Short
        windows show many scenes a step, which is what learning words and looks needs; long ones
        teach to continue.
    matrix_learning_rate : float
        Peak of Muon, for the matrices of the blocks.
    learning_rate : float
        Peak of AdamW, for everything else.
    live : float
        Share of steps on live sources in any motion; see `wavecore.train.live`.
    live_from : float
        Share of the run from which on there are such steps.
    subject_weight : float
        Loss weight of latent pixels that the subject touches.
    """

    minutes: float = 120.0
    chunks: int = 48
    curriculum: tuple[tuple[float, tuple[float, float, float, float]], ...] = (
        (0.0, (1.0, 0.0, 0.0, 0.0)),
        (0.15, (0.6, 0.25, 0.15, 0.0)),
        (0.4, (0.2, 0.35, 0.2, 0.25)),
        (0.7, (0.15, 0.3, 0.2, 0.35)),
    )
    matrix_learning_rate: float = 4e-3
    learning_rate: float = 1.5e-3
    decay: float = 0.4
    warmup_steps: int = 100
    live: float = 0.3
    live_from: float = 0.5
    subject_weight: float = 6.0
    pool: int = 3000
    text_drop: float = 0.05
    ema: float = 0.998
    seed: int = 0


def make_batch(clips: list[Clip], settings: DenoiserSettings, generator: np.random.Generator) -> Batch:
    """Noise a batch of clips and write their captions."""
    chunks = len(clips[0].scenes)
    drawn = [chunk_sigmas(generator, chunks, clip.from_start) for clip in clips]
    sigmas = torch.from_numpy(np.stack(drawn)).float()
    frame_sigmas = sigmas.repeat_interleave(CHUNK_LATENTS, 1)
    target = torch.stack([clip.latents for clip in clips]).float()
    source = torch.stack([clip.source for clip in clips]).float()
    level = frame_sigmas[:, None, :, None, None]
    # A source of another look is only believable behind noise, as restyling begins.
    visible = torch.where(level >= 0.6, source, target)
    # Clean context carries small errors when a model has made it itself.
    clean_error = 0.1 * torch.rand(len(clips), chunks).repeat_interleave(CHUNK_LATENTS, 1)
    disturbance = torch.where(level > 0, level, clean_error[:, None, :, None, None])
    noisy = (1 - level) * visible + disturbance * torch.randn_like(target)
    subject = torch.stack([clip.subject for clip in clips]).float()
    weight = (1 + (settings.subject_weight - 1) * subject) * (frame_sigmas > 0)[:, :, None, None]
    prompts: list[str] = []
    prompt_of = torch.zeros(len(clips), chunks, dtype=torch.long)
    for row, clip in enumerate(clips):
        dropped = generator.random() < settings.text_drop
        for chunk, scene in enumerate(clip.scenes):
            if chunk == 0 or scene != clip.scenes[chunk - 1]:
                prompts.append("" if dropped else caption(scene, generator, clip.unsaid[chunk]))
            prompt_of[row, chunk] = len(prompts) - 1
    return Batch(noisy, target, 1000 * frame_sigmas, weight[:, None], prompts, prompt_of)


def batch_loss(
    dit: CausalWanDiT,
    text_encoder: SpritesTextEncoder,
    batch: Batch,
    attend: Literal["causal", "full"] = "causal",
) -> tuple[Tensor, dict[float, float]]:
    """Weighted x0 error, and the plain error at each few-step level for the log."""
    text = text_encoder(batch.prompts)[batch.prompt_of]
    prediction = dit.predict(batch.noisy, batch.timesteps, text, attend, batch.chunk_frames)
    error = (prediction - batch.target).square()
    loss = (error * batch.weight).sum() / (batch.weight.sum() * error.shape[1]).clamp(min=1)
    with torch.no_grad():
        by_frame = error.mean((1, 3, 4))
        sigmas = batch.timesteps / 1000
        bands = {level: float(by_frame[(sigmas - level).abs() < 1e-4].mean()) for level in FEW_STEP_SIGMAS}
    return loss, bands


class DenoiserTraining:
    """A resumable training run in one folder: `state.pt`, `log.jsonl`, `ema.pt`.

    Parameters
    ----------
    folder : Path
        Made when it is not there; a run in it is resumed.
    vae : SpritesVAE
        Encodes the clips.
    settings : DenoiserSettings
    initial : mapping of str to Tensor, optional
        Weights that a new run begins with, under the names of `dit` and `text_encoder`.
    """

    def __init__(
        self,
        folder: Path,
        vae: SpritesVAE,
        settings: DenoiserSettings,
        initial: Mapping[str, Tensor] | None = None,
    ) -> None:
        self.folder, self.vae, self.settings = folder, vae, settings
        folder.mkdir(parents=True, exist_ok=True)
        torch.manual_seed(settings.seed)
        self.dit = CausalWanDiT(SPRITES_DIT)
        self.text_encoder = SpritesTextEncoder(SPRITES_DIT.text_dim)
        nn.init.zeros_(self.dit.head.head.weight)
        self.model = nn.ModuleDict({"dit": self.dit, "text_encoder": self.text_encoder})
        if initial is not None:
            self.model.load_state_dict(initial)
        matrices = [p for p in self.dit.blocks.parameters() if p.dim() == 2]
        chosen = {id(p) for p in matrices}
        others = [p for p in self.model.parameters() if id(p) not in chosen]
        self.optimizers: list[torch.optim.Optimizer] = [
            Muon(matrices, settings.matrix_learning_rate),
            torch.optim.AdamW(others, settings.learning_rate, (0.9, 0.98), weight_decay=0.0, fused=True),
        ]
        self.ema = {name: value.detach().clone() for name, value in self.model.state_dict().items()}
        self.step, self.seconds = 0, 0.0
        if (folder / "state.pt").exists():
            self._resume()

    def _resume(self) -> None:
        state = torch.load(self.folder / "state.pt", weights_only=True)
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.ema = state["ema"]
        self.step, self.seconds = state["step"], state["seconds"]

    def save(self) -> None:
        """Write the checkpoint; a reader never sees half a file."""
        state = {
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "ema": self.ema,
            "step": self.step,
            "seconds": self.seconds,
        }
        for name, value in (("state.pt", state), ("ema.pt", self.ema)):
            torch.save(value, self.folder / f"{name}.part")
            (self.folder / f"{name}.part").replace(self.folder / name)

    def schedule(self) -> float:
        """Share of the peak learning rates: warm-up, plateau, linear decay at the end of the time budget."""
        decay = min(1.0, max(0.02, (1 - self._progress) / self.settings.decay))
        return decay * min(1.0, (self.step + 1) / self.settings.warmup_steps)

    @property
    def _progress(self) -> float:
        return self.seconds / (60 * self.settings.minutes)

    def _window_length(self, generator: np.random.Generator) -> int:
        weights = [w for start, w in self.settings.curriculum if start <= self._progress][-1]
        return int(generator.choice(WINDOW_LENGTHS, p=weights))

    def batches(self, generator: np.random.Generator) -> Iterator[Batch]:
        """Endless batches of windows, from a pool of clips that is renewed all the time."""
        settings = self.settings
        pool = ClipPool(self.vae, settings.pool, seed=settings.seed + 7919 * (self.step + 1))
        for _ in range(6 * settings.chunks):
            pool.grow()
        live = live_batches(
            self.vae,
            self.dit,
            self.text_encoder,
            settings.chunks * CHUNK_LATENTS,
            settings.pool,
            settings.subject_weight,
            np.random.default_rng([settings.seed, 3, self.step]),
        )
        while True:
            if self._progress >= settings.live_from and generator.random() < settings.live:
                yield next(live)
                continue
            length = self._window_length(generator)
            pool.grow()
            yield make_batch(pool.sample(settings.chunks // length, length), settings, generator)

    def loss(self, batch: Batch) -> tuple[Tensor, dict[float, float]]:
        """See `batch_loss`."""
        return batch_loss(self.dit, self.text_encoder, batch)

    def run(self, on_log: OnLog = ignore, save_every: float = 240.0, max_steps: float = math.inf) -> None:
        """Train until the time budget is used, or `max_steps` are made; save every `save_every` seconds."""
        settings = self.settings
        batches = self.batches(np.random.default_rng([settings.seed, self.step]))
        bands: dict[float, list[float]] = {level: [] for level in FEW_STEP_SIGMAS}
        saved, logged = self.seconds, self.step
        last_step = self.step + max_steps
        try:
            while self.seconds < 60 * settings.minutes and self.step < last_step:
                began = time.perf_counter()
                loss, by_level = self._update(next(batches))
                self.step += 1
                self.seconds += time.perf_counter() - began
                for level, value in by_level.items():
                    if not math.isnan(value):  # no chunk of the batch had this level
                        bands[level].append(value)
                if self.step % LOG_EVERY == 0:
                    on_log(self._log(loss, bands))
                    bands = {level: [] for level in FEW_STEP_SIGMAS}
                    logged = self.step
                if self.seconds - saved > save_every:
                    self.save()
                    saved = self.seconds
            if self.step > logged:  # a run may be shorter than the way to the next row
                on_log(self._log(loss, bands))
        finally:  # an interrupt loses at most the step it falls into
            with uninterrupted():
                self.save()

    def _update(self, batch: Batch) -> tuple[float, dict[float, float]]:
        """One step of the optimizers and of the average; returns loss and error by level."""
        peaks = self.settings.matrix_learning_rate, self.settings.learning_rate
        for optimizer, peak in zip(self.optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * self.schedule()
        loss, by_level = self.loss(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        decay = min(self.settings.ema, (1 + self.step) / (10 + self.step))
        with torch.no_grad():
            for name, value in self.model.state_dict().items():
                self.ema[name].lerp_(value, 1 - decay)
        return loss.item(), by_level

    def _log(self, loss: float, bands: dict[float, list[float]]) -> dict[str, Any]:
        row = {
            "step": self.step,
            "minutes": round(self.seconds / 60, 2),
            "schedule": round(self.schedule(), 4),
            "loss": round(loss, 4),
            "x0_error": {
                f"{level:.4g}": round(float(np.mean(values)), 4) for level, values in bands.items() if values
            },
        }
        with (self.folder / "log.jsonl").open("a") as log:
            log.write(json.dumps(row) + "\n")
        if not (self.folder / "settings.json").exists():
            (self.folder / "settings.json").write_text(json.dumps(asdict(self.settings), indent=1))
        return row
