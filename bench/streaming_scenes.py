"""Sources of the streaming benchmarks, out of the sprites world."""

from __future__ import annotations

from typing import Any

from wavecore.sprites.world import CANVAS, Place, Scene, render, track

SCENE = Scene("ball", "red", "grass", "right", "slow")
PROMPT = "a blue star over grass"


def looping() -> Any:
    """A clip whose subject is back where it began after its 128 frames."""
    return render(track([SCENE] * CANVAS, Place()))
