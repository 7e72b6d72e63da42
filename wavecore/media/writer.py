"""Frames out: H.264 video, a directory of PNG files, and latents as safetensors.

Nothing appears under the final name before it is complete. Encoding runs in a thread of its own: it overlaps
the work that makes the frames, and an interrupt, which Python delivers to the main thread, can never fall
between the encoder and the file, so what was written so far stays playable.
"""

from __future__ import annotations

import os
import queue
import shutil
import threading
from abc import ABC, abstractmethod
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np

from wavecore.arguments import frame_rate
from wavecore.errors import InputError, UsageError
from wavecore.files import check_output, complete_or_nothing, pending_path, write_error
from wavecore.interrupts import uninterrupted
from wavecore.media.colour import even, to_yuv420

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from typing_extensions import Self

    Frame = NDArray[np.uint8]

_QUEUED_WRITES = 8


class FrameSink(ABC):
    """Where frames go, one `write` after the other; a context manager.

    Leaving the context normally, or by KeyboardInterrupt, completes the output (if it has a frame); leaving
    it by any other error removes what was written.

    Attributes
    ----------
    path : Path
    frames : int
        Frames accepted so far.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.frames = 0
        self._pending = pending_path(path)
        self._shape: tuple[int, ...] | None = None
        self._queue: queue.Queue[Frame | None] = queue.Queue(_QUEUED_WRITES)
        self._error: Exception | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def write(self, frames: Frame) -> None:
        """Queue frames; they are copied.

        Parameters
        ----------
        frames : uint8 [h, w, 3] or [n, h, w, 3]
            All frames of a sink have one size.

        Raises
        ------
        UsageError
            Wrong dtype or shape, or the sink is closed.
        InputError
            An earlier frame could not be written (disk full, ...).
        """
        if self._closed:
            raise UsageError(f"{self.path}: expected an open output, got one that is complete or given up")
        frames = np.asarray(frames)
        if frames.dtype != np.uint8 or frames.ndim not in (3, 4) or frames.shape[-1] != 3:
            raise UsageError(f"frames: expected uint8 [n, h, w, 3], got {frames.dtype} {list(frames.shape)}")
        if frames.ndim == 3:
            frames = frames[None]
        self._shape = self._shape or frames.shape[1:]
        if frames.shape[1:] != self._shape or 0 in self._shape:
            expected = f"{self._shape[1]}x{self._shape[0]}" if 0 not in self._shape else "at least 1x1"
            got = f"{frames.shape[2]}x{frames.shape[1]}"
            raise UsageError(f"frame {self.frames}: expected size {expected}, got {got}")
        self._raise_error()
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name=f"write {self.path.name}", daemon=True)
            self._thread.start()
        self._queue.put(frames.copy())
        self.frames += len(frames)

    def close(self) -> None:
        """Finish the output and give it its final name; nothing happens where that has been done.

        Raises
        ------
        InputError
            There was no frame, or the output could not be written; then nothing is left.
        """
        if self._closed:
            return
        if self._thread is None:
            raise InputError(f"{self.path}: not written: there is no frame")
        with uninterrupted():
            try:
                self._stop()
                self._raise_error()
                os.replace(self._pending, self.path)
            except OSError as error:
                raise write_error(self.path, error) from None
            finally:
                self._remove()

    def abort(self) -> None:
        """Remove what was written."""
        with uninterrupted():
            self._stop()
            self._remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        interrupted = kind is not None and issubclass(kind, KeyboardInterrupt) and self._thread is not None
        if kind is None or interrupted:
            self.close()
        else:
            self.abort()

    def _stop(self) -> None:
        self._closed = True
        if self._thread is not None:
            self._queue.put(None)
            self._thread.join()

    def _raise_error(self) -> None:
        if isinstance(self._error, OSError):
            raise write_error(self.path, self._error) from None
        if self._error is not None:
            raise self._error

    def _work(self) -> None:
        """Encode until the end mark; after an error keep emptying the queue, so that `write` never blocks."""
        try:
            while (frames := self._queue.get()) is not None:
                if self._error is None:
                    self._try(self._encode, frames)
        finally:
            self._try(self._finish)

    def _try(self, step: Any, *arguments: Any) -> None:
        try:
            step(*arguments)
        except Exception as error:  # handed to the thread that writes
            self._error = self._error or error

    @abstractmethod
    def _encode(self, frames: Frame) -> None:
        """Write frames [n, h, w, 3] to the pending path."""

    @abstractmethod
    def _finish(self) -> None:
        """Close the pending output."""

    @abstractmethod
    def _remove(self) -> None:
        """Remove the pending output if it is there."""


class VideoWriter(FrameSink):
    """An H.264 mp4: yuv420p, BT.709 (tagged), constant frame rate, playable from the start of a download.

    4:2:0 needs even sizes: an odd width or height is made even by repeating the last column or row, so the
    file is one pixel wider or taller than the frames.

    Parameters
    ----------
    path : path
        Ends in ``.mp4``; its directory exists. An existing file is replaced when the new one is complete.
    fps : Fraction or float
        Above 0.
    crf : int
        x264's constant rate factor: 0 is lossless in yuv420p, larger is smaller and worse, up to 51.
    """

    def __init__(self, path: str | os.PathLike[str], fps: Fraction | float, crf: int = 18) -> None:
        if Path(path).suffix.lower() != ".mp4":
            raise UsageError(f"{path}: expected a path that ends in .mp4")
        self.fps = frame_rate("fps", fps)
        super().__init__(check_output(path))
        self.crf = crf
        self._container: Any = None
        self._stream: Any = None
        self._encoded = 0

    def _open(self, height: int, width: int) -> None:
        import av

        if "libx264" not in av.codecs_available:
            raise InputError(f"{self.path}: cannot write: this PyAV has no H.264 encoder (libx264)")
        self._container = av.open(str(self._pending), "w", format="mp4", options={"movflags": "faststart"})
        options = {"crf": str(self.crf), "preset": "veryfast"}
        stream = self._container.add_stream("libx264", rate=self.fps, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        context = stream.codec_context
        # 1 is BT.709 in the first three tables of ITU-T H.273, and limited range in FFmpeg's.
        context.colorspace = context.color_primaries = context.color_trc = context.color_range = 1
        self._stream = stream

    def _encode(self, frames: Frame) -> None:
        frames = even(frames)
        if self._container is None:
            self._open(*frames.shape[1:3])
        for frame in frames:
            raw = to_yuv420(frame)
            raw.pts, raw.time_base = self._encoded, 1 / self.fps
            self._container.mux(self._stream.encode(raw))
            self._encoded += 1

    def _finish(self) -> None:
        if self._container is None:
            return
        try:
            if self._error is None:
                self._container.mux(self._stream.encode())
        finally:
            self._container.close()

    def _remove(self) -> None:
        self._pending.unlink(missing_ok=True)


class FrameDirectoryWriter(FrameSink):
    """A directory of PNG files 000000.png, 000001.png, ...

    Parameters
    ----------
    path : path
        A new or empty directory; its parent exists.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(check_output(path, directory=True))
        self._encoded = 0

    def _encode(self, frames: Frame) -> None:
        from PIL import Image

        self._pending.mkdir(exist_ok=True)
        for frame in frames:
            Image.fromarray(frame).save(self._pending / f"{self._encoded:06d}.png")
            self._encoded += 1

    def _finish(self) -> None:
        pass

    def _remove(self) -> None:
        shutil.rmtree(self._pending, ignore_errors=True)


def write_latents(path: str | os.PathLike[str], latents: torch.Tensor) -> None:
    """Write latents as safetensors with one tensor named ``latents``.

    Parameters
    ----------
    path : path
        An existing file is replaced when the new one is complete.
    latents : Tensor [frames, channels, height, width]
    """
    from safetensors.torch import save

    if latents.ndim != 4:
        raise UsageError(f"latents: expected [frames, channels, height, width], got {list(latents.shape)}")
    with complete_or_nothing(path) as pending:
        # Not `save_file`, whose files only their owner can read, and whose errors hide a full disk.
        pending.write_bytes(save({"latents": latents.detach().cpu().contiguous()}))
