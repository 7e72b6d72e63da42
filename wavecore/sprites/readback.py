"""Read frames of the sprites world back into facts: what is there, where, and how it moves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from wavecore.sprites.world import (
    BACKGROUNDS,
    CANVAS,
    COLOURS,
    DIRECTIONS,
    SHAPES,
    SPEEDS,
    background,
    signed_distance,
)

PERIOD = 64  # pixels after which every background repeats
DIFFERENT = 60.0  # RGB distance at which a pixel is not background
COARSE = (slice(None, None, 8), slice(None, None, 2))  # rows and columns that the search for the pan looks at
PRESENT = 0.5  # overlap with the best shape at which a subject counts as present


@dataclass(frozen=True)
class FrameFacts:
    """What one frame shows.

    Attributes
    ----------
    background : str
    pan : float
        Camera offset in pixels, modulo `PERIOD`.
    overlap : ndarray [len(SHAPES)]
        Best intersection over union with each shape.
    centre : ndarray [2]
        x, y of the subject in pixels, as the best shape sees it.
    colour : ndarray [3]
        Median RGB of the subject.
    """

    background: str
    pan: float
    overlap: NDArray[np.float64]
    centre: NDArray[np.float64]
    colour: NDArray[np.float64]


@dataclass(frozen=True)
class ClipFacts:
    """What a clip shows: the reading of most frames, and the tracks."""

    shape: str
    colour: str
    background: str
    motion: str
    speed: str
    camera: str
    present: float  # fraction of frames with a subject
    centre: NDArray[np.float64]  # [frames read, 2] unwrapped, pixels
    velocity: NDArray[np.float64]  # [2] pixels per frame
    pan_velocity: float  # pixels per frame


def read_frame(frame: NDArray[np.uint8]) -> FrameFacts:
    """Facts of one frame uint8 [CANVAS, CANVAS, 3]."""
    pixels = frame.astype(np.float32)
    name, pan, scenery = _find_background(pixels)
    mask = (np.linalg.norm(pixels - scenery, axis=-1) > DIFFERENT).astype(np.float64)
    spectrum = np.fft.rfft2(mask)
    overlaps, centres = [], []
    for shape in SHAPES:
        template, area = _template(shape)
        shared = np.fft.irfft2(spectrum * template, mask.shape)
        at = np.unravel_index(int(shared.argmax()), shared.shape)
        overlaps.append(shared[at] / max(mask.sum() + area - shared[at], 1.0))
        centres.append(_peak(shared, at))
    best = int(np.argmax(overlaps))
    inside = _near(centres[best]) & (mask > 0)
    colour = np.median(pixels[inside], axis=0) if inside.any() else np.zeros(3)
    return FrameFacts(name, pan, np.array(overlaps), centres[best], colour)


def read_clip(frames: NDArray[np.uint8], every: int = 1) -> ClipFacts:
    """Facts of a clip uint8 [f, CANVAS, CANVAS, 3], from every `every`-th frame."""
    facts = [read_frame(frame) for frame in frames[::every]]
    overlap = np.stack([fact.overlap for fact in facts])
    colours = [nearest_colour(fact.colour) for fact in facts]
    steps = _wrapped(np.diff(np.stack([fact.centre for fact in facts]), axis=0), CANVAS)
    centre = facts[0].centre + np.concatenate([np.zeros((1, 2)), steps.cumsum(0)])
    velocity = np.median(_smooth_steps(centre), axis=0) / every
    pans = _wrapped(np.diff([fact.pan for fact in facts]), 32)
    pan_velocity = float(np.median(pans)) / every if len(pans) else 0.0
    motion, speed = classify_motion(velocity)
    return ClipFacts(
        shape=SHAPES[int(overlap.mean(0).argmax())],
        colour=max(set(colours), key=colours.count),
        background=_most([fact.background for fact in facts]),
        motion=motion,
        speed=speed,
        camera="still" if abs(pan_velocity) < 0.5 else ("right" if pan_velocity > 0 else "left"),
        present=float((overlap.max(1) > PRESENT).mean()),
        centre=centre,
        velocity=velocity,
        pan_velocity=pan_velocity,
    )


def classify_motion(velocity: NDArray[np.float64]) -> tuple[str, str]:
    """Nearest direction and speed of a velocity in pixels per frame."""
    size = float(np.hypot(*velocity))
    if size < 0.4:
        return "still", "slow"
    moving = {name: np.array(unit) for name, unit in DIRECTIONS.items() if name != "still"}
    motion = max(moving, key=lambda name: float(velocity @ moving[name] / np.hypot(*moving[name])))
    return motion, min(SPEEDS, key=lambda name: abs(SPEEDS[name] - size))


def nearest_colour(rgb: NDArray[np.float64]) -> str:
    """Palette name nearest to an RGB value."""
    return min(COLOURS, key=lambda name: float(np.linalg.norm(rgb - np.array(COLOURS[name]))))


def _most(names: list[str]) -> str:
    return max(set(names), key=names.count)


def _wrapped(difference: ArrayLike, period: float) -> NDArray[np.float64]:
    return (np.asarray(difference) + period / 2) % period - period / 2


def _smooth_steps(centre: NDArray[np.float64], span: int = 4) -> NDArray[np.float64]:
    """Velocity over `span` frames, which is finer than the pixel grid of single steps."""
    if len(centre) <= span:
        return np.diff(centre, axis=0) if len(centre) > 1 else np.zeros((1, 2))
    return (centre[span:] - centre[:-span]) / span


def _near(centre: NDArray[np.float64]) -> NDArray[np.bool_]:
    axis = np.arange(CANVAS)
    x = np.abs(_wrapped(axis - centre[0], CANVAS))
    y = np.abs(_wrapped(axis - centre[1], CANVAS))
    return (y[:, None] < 28) & (x[None, :] < 28)


def _peak(values: NDArray[np.float64], at: tuple[np.intp, ...]) -> NDArray[np.float64]:
    """x, y of a maximum, refined by a parabola along each axis."""
    y, x = int(at[0]), int(at[1])
    return np.array([x + _vertex(values[y], x), y + _vertex(values[:, x], y)]) % CANVAS


def _vertex(line: NDArray[np.float64], at: int) -> float:
    before, here, after = line[at - 1], line[at], line[(at + 1) % len(line)]
    bend = before - 2 * here + after
    return 0.0 if bend >= 0 else float(np.clip(0.5 * (before - after) / bend, -0.5, 0.5))


@cache
def _template(shape: str) -> tuple[NDArray[np.complex128], float]:
    """Conjugate spectrum and area of a shape centred at the origin of the torus."""
    axis = _wrapped(np.arange(CANVAS), CANVAS)
    mask = (signed_distance(shape, axis[None, :], axis[:, None]) < 0).astype(np.float64)
    return np.conj(np.fft.rfft2(mask)), float(mask.sum())


@cache
def _scenery(name: str) -> NDArray[np.float32]:
    """Every pan of a background, float32 [PERIOD, CANVAS, CANVAS, 3]."""
    texture = background(name).astype(np.float32)
    return np.stack([np.roll(texture, -pan, axis=1) for pan in range(PERIOD)])


def _find_background(pixels: NDArray[np.float32]) -> tuple[str, float, NDArray[np.float32]]:
    """Name, pan and pixels of the background that fits most of a frame.

    The error of a pixel is capped, so that the subject, whatever it is, costs the same everywhere.
    """
    coarse = pixels[COARSE]
    errors = np.minimum(np.abs(_coarse_sceneries() - coarse).sum(-1), 3 * DIFFERENT).mean((2, 3))
    kind, pan = np.unravel_index(int(errors.argmin()), errors.shape)
    name = BACKGROUNDS[kind]
    return name, (pan + _vertex(-errors[kind], int(pan))) % PERIOD, _scenery(name)[pan]


@cache
def _coarse_sceneries() -> NDArray[np.float32]:
    """Every pan of every background on a coarse grid, [len(BACKGROUNDS), PERIOD, h, w, 3]."""
    every_pan = (slice(None), *COARSE)
    return np.stack([_scenery(name)[every_pan] for name in BACKGROUNDS])
