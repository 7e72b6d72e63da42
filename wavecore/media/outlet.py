"""Frames out while they are made: raw or encoded, to standard output, a named pipe or a TCP address."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np

from wavecore.arguments import frame_rate
from wavecore.errors import InputError, UsageError
from wavecore.files import write_error
from wavecore.media.live import parse_address

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

OutletFormat = Literal["raw", "mpegts"]


class Outlet:
    """A sink whose frames are on their way as soon as they are written.

    Parameters
    ----------
    target : str
        ``-`` for standard output, ``tcp:HOST:PORT`` for a connection, otherwise the path of a file or named
        pipe.
    format : "raw" or "mpegts"
        rgb24 bytes, or H.264 without look-ahead in an MPEG transport stream.
    fps : Fraction or float
        Of the encoded stream.

    Raises
    ------
    InputError
        The target cannot be opened; later, its reader has gone.
    """

    def __init__(self, target: str, format: OutletFormat, fps: Fraction | float) -> None:
        self.target, self.format = target, format
        self.fps = frame_rate("fps", fps)
        self.frames = 0
        self._file = _open(target)
        self._container: Any = None
        self._stream: Any = None

    def write(self, frames: NDArray[np.uint8]) -> None:
        """Write frames uint8 [n, h, w, 3]; waits while the reader does not take them."""
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3:
            raise UsageError(f"frames: expected uint8 [n, h, w, 3], got {frames.dtype} {list(frames.shape)}")
        try:
            if self.format == "raw":
                self._file.write(np.ascontiguousarray(frames).tobytes())
            else:
                self._encode(frames)
            self._file.flush()
        except BrokenPipeError:
            raise InputError(f"{self.target}: the reader closed its end after {self.frames} frames") from None
        except OSError as error:
            raise write_error(Path(self.target), error) from None
        self.frames += len(frames)

    def close(self) -> None:
        """Write what the encoder still holds and close the target."""
        if self._container is not None:
            self._container.mux(self._stream.encode())
            self._container.close()
            self._container = None
        self._file.flush()
        if self._file is not sys.stdout.buffer:
            self._file.close()

    def _encode(self, frames: NDArray[np.uint8]) -> None:
        import av

        if self._container is None:
            self._container = av.open(self._file, "w", format="mpegts")
            options = {"tune": "zerolatency", "preset": "veryfast", "g": str(max(1, round(self.fps)))}
            stream = self._container.add_stream("libx264", rate=self.fps, options=options)
            stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
            self._stream = stream
        for index, frame in enumerate(frames):
            raw = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), "rgb24").reformat(format="yuv420p")
            raw.pts, raw.time_base = self.frames + index, 1 / self.fps
            self._container.mux(self._stream.encode(raw))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None or issubclass(kind, KeyboardInterrupt):
            self.close()
            return
        with suppress(Exception):  # the first error is the one to tell
            self.close()


def is_outlet(target: str | os.PathLike[str]) -> bool:
    """Whether a target is written while frames are made: standard output or a TCP address."""
    return str(target) == "-" or str(target).startswith("tcp:")


def _open(target: str) -> BinaryIO:
    if target == "-":
        return sys.stdout.buffer
    try:
        if target.startswith("tcp:"):
            connection = socket.create_connection(parse_address(target.removeprefix("tcp:").lstrip("/")), 10)
            connection.settimeout(None)
            file: Any = connection.makefile("wb")
            return file
        return open(target, "wb")
    except OSError as error:
        raise InputError(f"{target}: cannot write: {error.strerror or error}") from None
