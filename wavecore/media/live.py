"""Sources that deliver frames over time: a camera, a pipe, a TCP connection, a file at its own pace.

Each iterates over uint8 frames [height, width, 3] of one size, whatever size the source changes to. A damaged
packet costs its frames and nothing else. `close` may be called from another thread and ends the iteration.
"""

from __future__ import annotations

import io
import os
import select
import socket
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from wavecore.errors import InputError, UsageError
from wavecore.media.geometry import ACCURATE_COLOUR, fit_frame
from wavecore.media.reader import VideoReader

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]

# Begin with what the first packets say: the default probes seconds of a stream before the first frame.
_LIVE_OPTIONS = {"probesize": "200000", "analyzeduration": "0", "flags": "low_delay"}


class LiveSource(ABC):
    """Frames over time.

    Attributes
    ----------
    name : str
        For messages.
    fps : Fraction or None
        Stated rate, if any.
    damaged : int
        Packets that could not be decoded.
    fault : str or None
        Why the source ended, when it did not end by itself.
    """

    def __init__(self, name: str, size: tuple[int, int]) -> None:
        self.name = name
        self.size = size
        self.fps: Fraction | None = None
        self.damaged = 0
        self.fault: str | None = None

    @abstractmethod
    def __iter__(self) -> Iterator[Frame]:
        """Yield frames as they come."""

    @abstractmethod
    def close(self) -> None:
        """End the iteration."""


class PacedFile(LiveSource):
    """A file at the pace at which it would play.

    Parameters
    ----------
    path : path
    size : (width, height)
    fps : Fraction or float, optional
        Frames a second to take from it; its own when not given.
    """

    def __init__(self, path: Path, size: tuple[int, int], fps: Fraction | float | None = None) -> None:
        super().__init__(str(path), size)
        self._reader = VideoReader(path, size=size, fps=fps)
        self.fps = self._reader.fps
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        assert self.fps is not None
        began = time.monotonic()
        try:
            for index, frame in enumerate(self._reader):
                wait = began + index / float(self.fps) - time.monotonic()
                if wait > 0:
                    time.sleep(wait)
                if self._closed:
                    return
                yield frame
        except InputError as error:  # it plays up to where it is damaged
            self.fault = str(error)

    def close(self) -> None:
        self._closed = True


class Arriving(io.FileIO):
    """Bytes that come over time, from a pipe or a connection.

    FFmpeg cannot be interrupted while it waits for them to find out what they are, so until `opened` is set a
    wait ends by itself: as the end of the stream, after `timeout` seconds without a byte or on Ctrl-C.

    Parameters
    ----------
    descriptor : int
        Becomes this object's own.
    timeout : float
        Seconds.
    """

    def __init__(self, descriptor: int, timeout: float) -> None:
        super().__init__(descriptor, "rb")
        self.timeout = timeout
        self.opened = self.interrupted = self.silent = False

    def read(self, size: int | None = -1, /) -> bytes:
        if self.silent or self.interrupted:  # FFmpeg asks again at the end of a stream
            return b""
        try:
            if not self.opened and not select.select([self], [], [], self.timeout)[0]:
                self.silent = True
                return b""
            return super().read(size) or b""
        except KeyboardInterrupt:  # would be lost in the code that has called this
            if self.opened:
                raise
            self.interrupted = True
            return b""


class EncodedStream(LiveSource):
    """Anything that FFmpeg decodes, from a file-like object or a device.

    Parameters
    ----------
    name : str
    size : (width, height)
    opened : file-like, or str
        What PyAV opens.
    format : str, optional
        FFmpeg's name of the container or device format; found out when not given.
    options : dict, optional
        FFmpeg's options of it.
    """

    def __init__(
        self,
        name: str,
        size: tuple[int, int],
        opened: BinaryIO | str,
        format: str | None = None,
        options: dict[str, str] | None = None,
    ) -> None:
        super().__init__(name, size)
        import av

        self._opened = opened
        self._container: Any
        try:
            self._container = av.open(
                opened, format=format, options={**_LIVE_OPTIONS, **(options or {})}, metadata_errors="replace"
            )
        except (av.FFmpegError, OSError, ValueError) as error:
            _check_arrival(name, opened)
            raise InputError(f"{name}: cannot be opened: {_cause(error)}") from None
        _check_arrival(name, opened)
        if isinstance(opened, Arriving):
            opened.opened = True
        if not self._container.streams.video:
            self._container.close()
            raise InputError(f"{name}: has no video stream")
        stream = self._container.streams.video[0]
        rate = stream.average_rate or stream.guessed_rate
        self.fps = Fraction(rate) if rate else None
        self._stream = stream
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        import av

        try:
            for packet in self._container.demux(self._stream):
                try:
                    frames = packet.decode()
                except av.InvalidDataError:
                    self.damaged += 1
                    continue
                for raw in frames:
                    rgb = raw.reformat(format="rgb24", interpolation=ACCURATE_COLOUR).to_ndarray()
                    yield fit_frame(np.asarray(rgb, np.uint8), *self.size)
                if self._closed:
                    return
        except (av.FFmpegError, OSError, ValueError) as error:
            if not self._closed:
                self.fault = f"{self.name}: {_cause(error)}"

    def close(self) -> None:
        self._closed = True
        if not isinstance(self._opened, str):
            with suppress(OSError, ValueError):
                self._opened.close()


class RawStream(LiveSource):
    """Frames of rgb24 bytes, one after the other.

    Parameters
    ----------
    name : str
    size : (width, height)
        Of the frames given.
    file : binary file
        Of the bytes.
    source_size : (width, height)
        Of the frames read.
    """

    def __init__(
        self, name: str, size: tuple[int, int], file: BinaryIO, source_size: tuple[int, int]
    ) -> None:
        super().__init__(name, size)
        self._file, self._source_size = file, source_size
        self._closed = False

    def __iter__(self) -> Iterator[Frame]:
        width, height = self._source_size
        wanted = width * height * 3
        while not self._closed:
            try:
                data = _read(self._file, wanted)
            except (OSError, ValueError) as error:
                if not self._closed:
                    self.fault = f"{self.name}: {_cause(error)}"
                return
            if len(data) < wanted:
                if data:
                    self.fault = (
                        f"{self.name}: ended within a frame: expected {wanted} bytes of rgb24 "
                        f"{width}x{height}, got {len(data)}"
                    )
                return
            frame = np.frombuffer(data, np.uint8).reshape(height, width, 3)
            yield fit_frame(frame, *self.size)

    def close(self) -> None:
        self._closed = True
        with suppress(OSError, ValueError):
            self._file.close()


def _check_arrival(name: str, opened: object) -> None:
    """Raise the error for bytes that have stopped to arrive before it was known what they are."""
    if isinstance(opened, Arriving) and opened.interrupted:
        raise KeyboardInterrupt
    if isinstance(opened, Arriving) and opened.silent:
        raise InputError(f"{name}: expected video within {opened.timeout:g} s, got none")


def _read(file: BinaryIO, count: int) -> bytes:
    """`count` bytes, or what there is before the end."""
    pieces = []
    while count:
        piece = file.read(count)
        if not piece:
            break
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)


def open_camera(device: str, size: tuple[int, int]) -> EncodedStream:
    """Open a Video4Linux camera such as ``/dev/video0``.

    Raises
    ------
    InputError
        There is none, or it cannot be opened.
    """
    if not Path(device).exists():
        raise InputError(f"{device}: no such camera")
    return EncodedStream(device, size, device, format="v4l2")


def open_pipe(size: tuple[int, int], raw_size: tuple[int, int] | None, timeout: float) -> LiveSource:
    """Read standard input: rgb24 frames of `raw_size`, or an encoded stream when that is None.

    Raises
    ------
    InputError
        It is a terminal, or no encoded stream, or nothing comes of one for `timeout` seconds.
    """
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("standard input: expected video through a pipe, got a terminal")
    # Not `sys.stdin.buffer`, whose lock a thread that still reads would hold when the program ends.
    file = Arriving(os.dup(sys.stdin.fileno()), timeout)
    return _of_bytes("standard input", file, size, raw_size)


def open_tcp(
    address: str, size: tuple[int, int], raw_size: tuple[int, int] | None, timeout: float
) -> LiveSource:
    """Wait for one connection on HOST:PORT, and read from it as `open_pipe` does.

    Raises
    ------
    UsageError
        `address` is not HOST:PORT.
    InputError
        It cannot be listened on, or nobody connected within `timeout` seconds.
    """
    host, port = parse_address(address)
    try:
        with socket.create_server((host, port)) as server:
            server.settimeout(timeout)
            connection, _ = server.accept()
    except TimeoutError:
        raise InputError(f"{address}: expected a connection within {timeout:g} s, got none") from None
    except OSError as error:
        raise InputError(f"{address}: cannot listen: {error.strerror or error}") from None
    connection.settimeout(None)
    file = Arriving(connection.detach(), timeout)
    return _of_bytes(address, file, size, raw_size)


def parse_address(text: str, name: str = "address") -> tuple[str, int]:
    """Split HOST:PORT; the error names it `name`."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or not 0 <= int(port) < 65536:
        raise UsageError(f"{name}: expected HOST:PORT, got {text!r}")
    return host.strip("[]") or "127.0.0.1", int(port)


def _of_bytes(
    name: str, file: Arriving, size: tuple[int, int], raw_size: tuple[int, int] | None
) -> LiveSource:
    if raw_size is not None:
        file.opened = True  # there is nothing to find out
        return RawStream(name, size, file, raw_size)
    return EncodedStream(name, size, file)


def _cause(error: Exception) -> str:
    return str(getattr(error, "strerror", None) or error)
