"""Sources of the streaming benchmarks, out of the sprites world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from wavecore.sprites.world import CANVAS, Place, Scene, render, track

SCENE = Scene("ball", "red", "grass", "right", "slow")
PROMPT = "a blue star over grass"


def looping() -> Any:
    """A clip whose subject is back where it began after its 128 frames."""
    return render(track([SCENE] * CANVAS, Place()))


def moving(scene: Scene, subject: tuple[float, float], background: tuple[float, float], count: int) -> Any:
    """Frames of a subject and a background, each moving so many pixels a frame over the screen, x and y."""
    steps = np.arange(count)[:, None]
    rolled = np.rint(np.array(background) * steps).astype(int)
    centre = CANVAS / 2 + np.array(subject) * steps - rolled
    truth = track([scene] * count, Place())
    still = render(replace(truth, centre=np.mod(centre, CANVAS), pan=np.zeros(count)))
    return np.stack([np.roll(frame, (y, x), (0, 1)) for frame, (x, y) in zip(still, rolled, strict=True)])
