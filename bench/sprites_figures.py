"""Pictures of docs/sprites.md: `python bench/sprites_figures.py`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import wavecore
from wavecore.media import save_contact_sheet
from wavecore.sprites.world import Place, Scene, render, track

IMAGES = Path(__file__).parents[1] / "docs" / "images"
COLUMNS = 8
PROMPTS = (  # pairs of colour and shape that no training caption names together
    "a red star moving up and right over the night sky",
    "a yellow box moving left over sand",
    "a green cross moving down quickly over tiles",
    "a blue triangle moving right over grass",
    "a white ball moving up over water",
    "a purple star moving down and left over bricks",
)


def picked(frames: Any) -> list[Any]:
    """So many frames as a row has, evenly spaced."""
    return list(frames[np.linspace(0, len(frames) - 1, COLUMNS).round().astype(int)])


def shown(session: Any) -> Any:
    """All frames of a session."""
    with session:
        return np.concatenate([group.frames for group in session])


def main() -> None:
    pipe = wavecore.load("sprites")
    frames: list[Any] = []
    for index, prompt in enumerate(PROMPTS):
        frames += picked(shown(pipe.session(prompt, seed=index, seconds=5)))
    save_contact_sheet(IMAGES / "prompts.png", frames, COLUMNS)
    source = render(track([Scene("ball", "red", "grass", "right", "slow")] * 81, Place(40, 60)))
    result = shown(pipe.restyle(source, "a yellow star moving right over grass", seed=2))
    save_contact_sheet(IMAGES / "restyle.png", picked(source) + picked(result), COLUMNS)


if __name__ == "__main__":
    main()
