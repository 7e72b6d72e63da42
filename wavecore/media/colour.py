"""RGB frames to the pixel format that video encoders take."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wavecore.media.geometry import ACCURATE_COLOUR

if TYPE_CHECKING:
    import av
    from numpy.typing import NDArray


def even(frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Repeat the last column or row of frames [n, h, w, 3] of odd size: 4:2:0 needs even ones."""
    height, width = frames.shape[1:3]
    if height % 2 or width % 2:
        return np.pad(frames, ((0, 0), (0, height % 2), (0, width % 2), (0, 0)), mode="edge")
    return frames


def to_yuv420(frame: NDArray[np.uint8]) -> av.VideoFrame:
    """Convert RGB uint8 [h, w, 3], of even size, to yuv420p, BT.709, limited range."""
    import av
    from av.video.reformatter import ColorRange, Colorspace

    return av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24").reformat(
        format="yuv420p",
        dst_colorspace=Colorspace.ITU709,
        dst_color_range=ColorRange.MPEG,
        interpolation=ACCURATE_COLOUR,
    )
