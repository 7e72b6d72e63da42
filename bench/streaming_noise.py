"""Noise after motion: warp error against the source, and what is read back, with the controller and without.

The constants of `sprites` were chosen on a red ball turned into a blue star and motions (7, 4), (-7, -4) and
(4, -7). What is measured here goes in other directions, with subjects and prompts drawn at random.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import torch

import wavecore as wc
from wavecore.control.streaming import StreamingSettings
from wavecore.metrics import SourceMotion
from wavecore.restyling import motion_noise
from wavecore.source import to_pixels, to_uint8
from wavecore.sprites.readback import nearest_colour, read_frame
from wavecore.sprites.world import BACKGROUNDS, CANVAS, SHAPES, Scene, random_scene, render_moving

# Motion on the screen in pixels a frame, of the subject and of the background: 8 in length. Along the width
# alone a latent's four frames move by just the period of the textures, so that their latents stand still.
MOTIONS = {
    "static": ((0, 0), (0, 0)),
    "all of the picture": ((-4, 7), (-4, 7)),
    "subject against background": ((-4, 7), (4, -7)),
    "background": ((0, 0), (-7, 4)),
    "subject": ((-7, 4), (0, 0)),
    "subject and background, along the width": ((8, 0), (-8, 0)),
}
SETTLED = 5  # frames until the controller has seen motion


def noise(count: int, steps: Sequence[int], draws: int) -> dict[str, Any]:
    """Means over backgrounds and `draws` of subject and prompt on each, by number of steps and motion."""
    pipe = wc.load("sprites")
    fixed = StreamingSettings(chunk_frames=1, first_chunk_frames=1)
    preset = motion_noise(pipe.model.defaults)
    motion = StreamingSettings(chunk_frames=1, first_chunk_frames=1, noise=preset)
    rows: dict[str, Any] = {str(number): {} for number in steps}
    for name, (subject, background) in MOTIONS.items():
        cells: dict[tuple[int, str], list[dict[str, float]]] = {}
        alone = []
        for texture, draw in product(BACKGROUNDS, range(draws)):
            generator = np.random.default_rng((BACKGROUNDS.index(texture), draw))
            shown, wanted = random_scene(generator, None), random_scene(generator, None)
            source = render_moving(replace(shown, background=texture), subject, background, count)[0]
            along = SourceMotion(source)
            with torch.inference_mode():
                coded = to_uint8(pipe.model.vae.decode(pipe.model.vae.encode(to_pixels(source)))[0])
            alone.append(along.warp_error(coded))
            for number, (kind, settings) in product(steps, (("fixed", fixed), ("motion", motion))):
                session = pipe.restyle(
                    iter(source),
                    f"a {wanted.colour} {wanted.shape} over {texture}",
                    seed=draw,
                    steps=number,
                    rounds="stream_batch",
                    streaming=settings,
                )
                with session:
                    edited = np.concatenate([group.frames for group in session])
                facts = {"warp_error": along.warp_error(edited), **read_back(edited, wanted, subject)}
                cells.setdefault((number, kind), []).append(facts)
        for number in steps:
            rows[str(number)][name] = row(cells[number, "fixed"], cells[number, "motion"], draws)
            rows[str(number)][name]["vae_alone"] = statistics.mean(alone)
    return {
        "frames": count,
        "draws": draws,
        "highest": preset.highest,
        "span": preset.span,
        "scale": preset.scale,
        "by_steps": rows,
    }


def read_back(edited: Any, wanted: Scene, subject: tuple[float, float]) -> dict[str, float]:
    """Percent of frames with colour and shape of the prompt; pixels from the subject to the source's."""
    colour, shape, away = [], [], []
    for index in range(SETTLED, len(edited), 3):
        facts = read_frame(edited[index])
        colour.append(nearest_colour(facts.colour) == wanted.colour)
        shape.append(SHAPES[int(facts.overlap.argmax())] == wanted.shape)
        there = CANVAS / 2 + np.array(subject) * index
        apart = np.mod(facts.centre - there + CANVAS / 2, CANVAS) - CANVAS / 2
        away.append(float(np.hypot(*apart)))
    return {
        "colour_percent": 100 * statistics.mean(colour),
        "shape_percent": 100 * statistics.mean(shape),
        "away_px": statistics.mean(away),
    }


def row(fixed: list[dict[str, float]], motion: list[dict[str, float]], draws: int) -> dict[str, Any]:
    """One motion: means, and by how much the controller lowers the warp error, on each background too."""
    means = {
        kind: {name: statistics.mean(cell[name] for cell in cells) for name in cells[0]}
        for kind, cells in (("fixed", fixed), ("motion", motion))
    }
    errors = np.array([[cell["warp_error"] for cell in cells] for cells in (fixed, motion)])
    by_background = errors.reshape(2, len(BACKGROUNDS), draws).mean(2)
    lower = 100 * (1 - by_background[1] / by_background[0])
    return {
        **means,
        "lower_by_percent": 100 * (1 - means["motion"]["warp_error"] / means["fixed"]["warp_error"]),
        "lower_by_background": dict(zip(BACKGROUNDS, lower.round(1).tolist(), strict=True)),
    }
