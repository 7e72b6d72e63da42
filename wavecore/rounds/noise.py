"""Noise levels of flow matching, and noise that depends on what it is for, not on when it is drawn."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from wavecore.arguments import positive
from wavecore.errors import UsageError

TRAINING_STEPS = 1000


class NoiseLevel(NamedTuple):
    """What the model is told (`timestep`, 0 to 1000) and the share of noise (`sigma`, 0 to 1)."""

    timestep: float
    sigma: float


def shifted(s: float, shift: float) -> float:
    """sigma(s) = k s / (1 + (k - 1) s), the timestep shift of Wan (k = `shift`)."""
    return shift * s / (1 + (shift - 1) * s)


def warped_levels(steps: Sequence[float], shift: float, store: float = 0.0) -> tuple[NoiseLevel, ...]:
    """Levels whose raw timesteps are shifted: 1000, 750, 500, 250 at shift 5 is 1000, 937.5, 833.3, 625.

    Parameters
    ----------
    steps : sequence of float
        Raw timesteps, falling, within (0, 1000].
    shift : float
        k of the shift; 5 for Self-Forcing and Wave Forcing, 8 for CausVid.
    store : float
        Timestep of the store pass, which comes last (`context_noise` of Self-Forcing).

    Returns
    -------
    tuple of NoiseLevel
        One per denoising stage, then the store's.
    """
    _check(steps, shift)
    sigmas = [shifted(step / TRAINING_STEPS, shift) for step in steps]
    levels = [NoiseLevel(TRAINING_STEPS * sigma, sigma) for sigma in sigmas]
    return (*levels, NoiseLevel(store, store / TRAINING_STEPS))


def nearest_levels(timesteps: Sequence[float], shift: float, store: float = 0.0) -> tuple[NoiseLevel, ...]:
    """Levels named by timestep, whose sigma is the nearest of the 1,000 training ones.

    StreamDiffusionV2 uses 700, 500, 400, 200 at shift 8 in this way. Returns as `warped_levels`.
    """
    _check(timesteps, shift)
    levels = [NoiseLevel(t, nearest_sigma(t, shift)) for t in timesteps]
    return (*levels, NoiseLevel(store, store / TRAINING_STEPS))


def nearest_sigma(timestep: float, shift: float) -> float:
    """Sigma of the training timestep that is nearest to `timestep`."""
    s = np.linspace(1, 0, TRAINING_STEPS + 1)[:-1]
    sigmas = shift * s / (1 + (shift - 1) * s)
    return float(sigmas[np.abs(TRAINING_STEPS * sigmas - timestep).argmin()])


def noise(seed: int, chunk: int, stage: int, shape: Sequence[int]) -> np.ndarray:
    """Standard normal noise of one chunk at one stage, float32.

    The counter of a Philox generator starts at a place of its own for each (chunk, stage), so
    any order of execution draws the same numbers. NumPy may change its normal distribution between versions.
    """
    generator = np.random.Philox(key=seed % 2**128, counter=[0, 0, stage, chunk])
    return np.random.Generator(generator).standard_normal(shape, dtype=np.float32)


def _check(timesteps: Sequence[float], shift: float) -> None:
    positive("shift", shift)
    values = list(timesteps)
    falling = all(a > b for a, b in pairwise(values))
    if not values or not falling or not 0 < values[-1] <= values[0] <= TRAINING_STEPS:
        raise UsageError(f"timesteps: expected falling numbers within (0, 1000], got {values}")
