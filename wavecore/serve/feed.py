"""Images from a viewer on their way to the model: bounded, thinned out by rule."""

from __future__ import annotations

import io
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from wavecore.control.streaming import Inbox
from wavecore.errors import InputError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_WAITING = 8
_SIDE = 4_096  # largest width or height


class ImageFeed:
    """An iterator of frames that `put` feeds; it waits for them and ends with `close`.

    Parameters
    ----------
    size : (width, height)
        To which images are scaled, cut to its shape.
    """

    def __init__(self, size: tuple[int, int]) -> None:
        self._size = size
        self._inbox: Inbox[bytes] = Inbox(_WAITING)
        self._changed = threading.Condition()
        self._closed = False

    @property
    def oldest(self) -> float | None:
        """When the image that has waited longest arrived, in seconds."""
        with self._changed:
            return None if self._inbox.oldest is None else self._inbox.oldest / 1e9

    def put(self, data: bytes) -> int:
        """Add a JPEG or PNG file; returns how many images were dropped for it.

        Raises
        ------
        InputError
            It is none, or too large.
        """
        from PIL import Image, UnidentifiedImageError

        try:
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                size = image.size
        except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError):
            raise InputError("data: expected a JPEG or PNG image") from None
        if max(size) > _SIDE:
            raise InputError(f"data: expected at most {_SIDE}x{_SIDE} pixels, got {size[0]}x{size[1]}")
        with self._changed:
            dropped = self._inbox.put(data, time.monotonic_ns())
            self._changed.notify()
        return dropped

    def close(self) -> None:
        """Let the iterator end."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def __iter__(self) -> Iterator[NDArray[np.uint8]]:
        return self

    def __next__(self) -> NDArray[np.uint8]:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: len(self._inbox) or self._closed)
                if self._closed:
                    raise StopIteration
                (arrival,) = self._inbox.take(1)
            frame = self._decode(arrival.frame)
            if frame is not None:
                return frame

    def _decode(self, data: bytes) -> NDArray[np.uint8] | None:
        """Decode and fit; None for a file that turns out to be broken, which is passed over."""
        from PIL import Image, ImageOps

        try:
            with Image.open(io.BytesIO(data), formats=("JPEG", "PNG")) as image:
                return np.array(ImageOps.fit(image.convert("RGB"), self._size))
        except (OSError, ValueError, SyntaxError):
            return None
