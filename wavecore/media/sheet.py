"""Contact sheets: one picture that shows a clip."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from wavecore.arguments import whole
from wavecore.errors import UsageError
from wavecore.files import complete_or_nothing

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]


class FramePicker:
    """Keep evenly spaced frames of a stream whose length is not known.

    At most ``2 * count`` frames are held: when more come, every second one is dropped.

    Parameters
    ----------
    count : int
        Frames wanted, at least 1.
    """

    def __init__(self, count: int) -> None:
        whole("count", count, 1)
        self.count = count
        self._kept: list[Frame] = []
        self._stride = 1
        self._seen = 0

    def add(self, frame: Frame) -> None:
        """Offer the next frame, uint8 [h, w, 3]."""
        if self._seen % self._stride == 0:
            self._kept.append(np.array(frame, copy=True))
            if len(self._kept) > 2 * self.count:
                self._kept = self._kept[::2]
                self._stride *= 2
        self._seen += 1

    def frames(self) -> list[Frame]:
        """Return up to `count` frames, first to last, evenly spaced among those held."""
        if len(self._kept) <= self.count:
            return list(self._kept)
        picks = np.linspace(0, len(self._kept) - 1, self.count).round().astype(int)
        return [self._kept[i] for i in picks]


def contact_sheet(frames: Sequence[Frame] | Frame, columns: int = 8, gap: int = 2) -> Frame:
    """Lay frames out row by row.

    Parameters
    ----------
    frames : sequence of uint8 [h, w, 3], or uint8 [n, h, w, 3]
        All of one size, at least one.
    columns : int
        Frames a row; fewer frames make a narrower sheet.
    gap : int
        Pixels between frames, dark grey.

    Returns
    -------
    uint8 [rows * (h + gap) - gap, columns * (w + gap) - gap, 3]

    Raises
    ------
    UsageError
        No frame, frames of different sizes, or ``columns`` below 1.
    """
    whole("columns", columns, 1)
    if len(frames) == 0:
        raise UsageError("frames: expected at least one frame, got none")
    height, width = frames[0].shape[:2]
    columns = min(columns, len(frames))
    rows = -(-len(frames) // columns)
    sheet = np.full((rows * (height + gap) - gap, columns * (width + gap) - gap, 3), 32, np.uint8)
    for index, frame in enumerate(frames):
        if frame.shape != (height, width, 3):
            raise UsageError(f"frames[{index}]: expected shape {(height, width, 3)}, got {frame.shape}")
        top, left = index // columns * (height + gap), index % columns * (width + gap)
        sheet[top : top + height, left : left + width] = frame
    return sheet


def save_contact_sheet(
    path: str | os.PathLike[str], frames: Sequence[Frame] | Frame, columns: int = 8, gap: int = 2
) -> None:
    """Write `contact_sheet` as a PNG file; nothing is left behind when that fails."""
    from PIL import Image

    sheet = contact_sheet(frames, columns, gap)
    with complete_or_nothing(path) as pending:
        Image.fromarray(sheet).save(pending, format="PNG")
