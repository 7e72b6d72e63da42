"""Noise levels of training clips: what each chunk of a clip looks like to the model."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from wavecore.rounds import shifted, warped_levels

SHIFT = 5.0
FEW_STEP_SIGMAS = tuple(level.sigma for level in warped_levels((1000, 750, 500, 250), SHIFT)[:-1])


def chunk_sigmas(generator: np.random.Generator, chunks: int, from_start: bool) -> NDArray[np.float64]:
    """Sigma of each chunk of one clip; 0 is a clean chunk, which is context only.

    Half of the clips carry the deployment staircase of a wave (newest chunk noisiest, one
    level a chunk), the others independent levels, so that one model serves both the wave and
    the sequential semantics. A single chunk from the middle of a stream has no context that
    says where the subject is, so it must be visible through the noise. A single chunk at a
    stream's start is mostly noise: only there has motion to be read from the text alone.
    """
    if chunks == 1 and from_start:
        return generator.choice(FEW_STEP_SIGMAS, 1, p=(0.45, 0.25, 0.18, 0.12))
    if chunks == 1:
        sigma = independent_sigmas(generator, 1, clean=0.0)
        return np.minimum(sigma, 0.4 + 0.5 * generator.random())
    while True:
        sigmas = _staircase(generator, chunks, from_start)
        if generator.random() < 0.5:
            sigmas = independent_sigmas(generator, chunks)
            if not from_start:
                sigmas[: int(generator.integers(1, min(chunks, 3)))] = 0.0
        if sigmas.any():
            return sigmas


def _staircase(generator: np.random.Generator, chunks: int, from_start: bool) -> NDArray[np.float64]:
    newest = int(generator.integers(0, chunks)) if from_start else chunks - 1
    lead = 0 if chunks > len(FEW_STEP_SIGMAS) else _lead(generator, chunks)
    stages = newest + lead - np.arange(chunks)
    levels = np.array([*FEW_STEP_SIGMAS, 0.0])
    sigmas = levels[np.clip(stages, 0, len(levels) - 1)]
    sigmas[stages < 0] = independent_sigmas(generator, int((stages < 0).sum()))
    return sigmas


def _lead(generator: np.random.Generator, chunks: int) -> int:
    """How many stages the newest chunk of a short clip is already through, so that its oldest is clean."""
    return int(generator.integers(max(0, len(FEW_STEP_SIGMAS) + 1 - chunks), len(FEW_STEP_SIGMAS)))


def independent_sigmas(
    generator: np.random.Generator, count: int, clean: float = 0.25
) -> NDArray[np.float64]:
    """A level a chunk: clean, one of the few-step levels, or anything in between (shifted uniform)."""
    anywhere = [shifted(s, SHIFT) for s in generator.random(count)]
    kind = generator.random(count)
    few = generator.choice(FEW_STEP_SIGMAS, count)
    return np.where(kind < clean, 0.0, np.where(kind < clean + 0.4, few, anywhere))
