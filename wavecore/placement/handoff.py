"""Latents on their way from stage to stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from wavecore.errors import WavecoreError
from wavecore.rounds import Key, NoiseLevel, Round, Slot, noise
from wavecore.transfer import upload


def renoise(x0: Tensor, epsilon: Tensor, sigma: float) -> Tensor:
    """x_t = (1 - sigma) x0 + sigma epsilon (flow matching)."""
    return (1 - sigma) * x0 + sigma * epsilon


class Handoff:
    """Gives each slot its input, and takes its result to the next stage.

    Between stages the clean estimate is noised anew (stochastic consistency sampling), with noise
    that depends on seed, chunk and stage only, so every order of execution draws the same.

    Parameters
    ----------
    levels : sequence of NoiseLevel
        Of each stage.
    seed : int
        Of the stream.
    size : tuple (c, h, w)
        Channels, height and width of a latent frame.
    device : torch.device
        Of the latents, which are float32.
    """

    def __init__(
        self,
        levels: Sequence[NoiseLevel],
        seed: int,
        size: tuple[int, int, int],
        device: torch.device | str = "cpu",
    ) -> None:
        self.levels = levels
        self.seed = seed
        self.size = size
        self.device = device
        self._waiting: dict[Key, Tensor] = {}
        self._own_levels: dict[int, Sequence[NoiseLevel]] = {}

    def level(self, chunk: int, stage: int) -> NoiseLevel:
        """Noise level of a chunk at a stage."""
        return self._own_levels.get(chunk, self.levels)[stage]

    def levels_of(self, round: Round) -> dict[int, NoiseLevel]:
        """Noise level of each slot of a round, by stage."""
        return {slot.stage: self.level(slot.chunk, slot.stage) for slot in round.slots}

    def noise(self, chunk: int, stage: int, frames: int) -> Tensor:
        """Noise of a chunk at a stage, float32 [c, f, h, w]."""
        channels, height, width = self.size
        drawn = noise(self.seed, chunk, stage, (channels, frames, height, width))
        return upload(torch.from_numpy(drawn), self.device)

    def enter(
        self,
        chunk: int,
        source: Tensor,
        sigma: float | None = None,
        levels: Sequence[NoiseLevel] | None = None,
    ) -> None:
        """Start a chunk from a latent [c, f, h, w] with noise added, not from noise alone.

        `sigma` is the share of noise; that of stage 0 when not given. `levels` are those of this chunk, where
        they differ from the stream's.
        """
        if levels is not None:
            self._own_levels[chunk] = levels
        sigma = self.level(chunk, 0).sigma if sigma is None else sigma
        self._waiting[Key(chunk, 0)] = renoise(source, self.noise(chunk, 0, source.shape[1]), sigma)

    def entrance(self, chunk: int) -> tuple[Tensor, Sequence[NoiseLevel] | None] | None:
        """What a chunk enters with, for rounds that run elsewhere: its input and its own levels, if any.

        None where it starts from noise alone.
        """
        latent = self._waiting.pop(Key(chunk, 0), None)
        return None if latent is None else (latent, self._own_levels.pop(chunk, None))

    def latents(self, round: Round) -> dict[int, Tensor]:
        """Input of each slot of a round, by stage."""
        return {slot.stage: self._take(slot) for slot in round.slots}

    def _take(self, slot: Slot) -> Tensor:
        waiting = self._waiting.pop(slot.key, None)
        if waiting is not None:
            return waiting
        if slot.stage:
            raise WavecoreError(
                f"latents: expected chunk {slot.chunk} to have passed stage {slot.stage - 1}, it has not"
            )
        return self.noise(slot.chunk, 0, slot.frames)

    def advance(self, round: Round, estimates: Mapping[int, Tensor]) -> Tensor | None:
        """Take the results of a round to the next stages; returns the latent that is complete, if any."""
        complete = None
        for slot in round.slots:
            if slot.stage not in estimates:  # the store pass
                self._own_levels.pop(slot.chunk, None)
                continue
            x0, following = estimates[slot.stage], Key(slot.chunk, slot.stage + 1)
            if slot.stage == round.steps - 1:
                complete = x0
                if round.store_pass:
                    self._waiting[following] = x0
                else:
                    self._own_levels.pop(slot.chunk, None)
            else:
                epsilon = self.noise(*following, slot.frames)
                self._waiting[following] = renoise(x0, epsilon, self.level(*following).sigma)
        return complete

    @property
    def waiting(self) -> frozenset[Key]:
        """What has its input ready: chunk and the stage it waits for."""
        return frozenset(self._waiting)

    def drop_from(self, chunk: int) -> None:
        """Forget `chunk` and all later ones, for a stream that branches there."""
        self._waiting = {key: latent for key, latent in self._waiting.items() if key.chunk < chunk}
        self._own_levels = {key: levels for key, levels in self._own_levels.items() if key < chunk}
