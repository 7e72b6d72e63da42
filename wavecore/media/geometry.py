"""Frame geometry and colour: display matrix, alpha, crop and resize to a wanted size."""

from __future__ import annotations

import math
import struct
from fractions import Fraction
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]

# swscale's flags for colour conversion: bicubic, chroma interpolated at full width, accurate rounding. Its
# default halves the chroma of RGB by dropping columns and rounds down: a bias of a grey level or more.
ACCURATE_COLOUR = 0x4 | 0x2000 | 0x4000 | 0x40000


def centre_crop_box(
    width: int, height: int, target_width: int, target_height: int, pixel_aspect: Fraction = Fraction(1)
) -> tuple[float, float, float, float]:
    """Find the largest centred rectangle with the aspect of the target.

    Parameters
    ----------
    width, height : int
        Source size in pixels.
    target_width, target_height : int
        Target size in square pixels.
    pixel_aspect : Fraction
        Width of a source pixel over its height.

    Returns
    -------
    left, top, right, bottom : float
        Edges in source pixels; they may fall inside a pixel.
    """
    shown_width = width * pixel_aspect
    if shown_width * target_height > height * target_width:  # the source is too wide: cut left and right
        kept = Fraction(height * target_width, target_height) / pixel_aspect
        left = (width - kept) / 2
        return float(left), 0.0, float(left + kept), float(height)
    kept = shown_width * target_height / target_width
    top = (height - kept) / 2
    return 0.0, float(top), float(width), float(top + kept)


def fit_frame(
    frame: Frame, width: int, height: int, pixel_aspect: Fraction = Fraction(1), crop: bool = True
) -> Frame:
    """Centre crop to the aspect of the target, then resize (bicubic, antialiased).

    Parameters
    ----------
    frame : uint8 [h, w, 3]
    width, height : int
        Target size in square pixels.
    pixel_aspect : Fraction
        Width of a source pixel over its height.
    crop : bool
        False stretches the whole frame to the target instead.

    Returns
    -------
    uint8 [height, width, 3]
        The frame itself when it already has this size and square pixels.
    """
    from PIL import Image

    source_height, source_width = frame.shape[:2]
    if (source_width, source_height) == (width, height) and (pixel_aspect == 1 or not crop):
        return frame
    left, top, right, bottom = 0.0, 0.0, float(source_width), float(source_height)
    if crop:
        left, top, right, bottom = centre_crop_box(source_width, source_height, width, height, pixel_aspect)
    # Whole pixels are cut first: the filter would reach past its box into what the crop leaves out.
    x, y = math.floor(left), math.floor(top)
    image = Image.fromarray(frame[y : math.ceil(bottom), x : math.ceil(right)])
    box = (left - x, top - y, right - x, bottom - y)
    return np.array(image.resize((width, height), Image.Resampling.BICUBIC, box=box))


def over_black(rgba: Frame) -> Frame:
    """Composite straight (not premultiplied) alpha over black.

    Parameters
    ----------
    rgba : uint8 [h, w, 4]

    Returns
    -------
    uint8 [h, w, 3]
        ``round(colour * alpha / 255)``.
    """
    colour = rgba[..., :3].astype(np.uint16)
    alpha = rgba[..., 3:].astype(np.uint16)
    return ((colour * alpha + 127) // 255).astype(np.uint8)


def orientation(matrix: bytes | None) -> tuple[bool, bool, bool]:
    """Read a display matrix as a transposition followed by flips.

    The matrix is nine native 32-bit integers (a b u; c d v; x y w); it takes the pixel (p, q) to
    (a p + c q + x, b p + d q + y) (ISO 14496-12 section 6.2.2). Angles between the right angles go to the
    nearest one.

    Returns
    -------
    transpose, flip_columns, flip_rows : bool
        In the order in which they apply.
    """
    if matrix is None or len(matrix) < 36:
        return False, False, False
    a, b, _, c, d = struct.unpack("=5i", matrix[:20])
    if abs(b) > abs(a):
        return True, c < 0, b < 0
    return False, a < 0, d < 0


def orient(frame: Frame, transpose: bool, flip_columns: bool, flip_rows: bool) -> Frame:
    """Turn and flip a frame [h, w, 3] as `orientation` says."""
    if transpose:
        frame = frame.transpose(1, 0, 2)
    if flip_columns:
        frame = frame[:, ::-1]
    if flip_rows:
        frame = frame[::-1]
    return np.ascontiguousarray(frame)
