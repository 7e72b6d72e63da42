"""Video in: a file as an iterator of frames, with a stated rule for everything a file may contain.

The rules (also in docs/media.md): the first video stream that is not a cover picture is read; rotation and
mirroring metadata are applied; pixels that are not square are made square; alpha is composited over black;
a clip of N frames gives N frames unless another frame rate is asked for; a file that ends before its own
stated duration is an error.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavecore.arguments import frame_rate
from wavecore.errors import InputError, UsageError
from wavecore.media.geometry import ACCURATE_COLOUR, fit_frame, orient, orientation, over_black
from wavecore.media.timing import resample
from wavecore.memory import check_memory

if TYPE_CHECKING:
    import av
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]

# Demuxers that read a text file as a picture, or a playlist that names other files.
_PIXEL_BYTES = 3
_REFUSED_FORMATS = {"tty", "hls", "dash", "concat", "imf", "sdp"}
# FFmpeg's own VP8 and VP9 decoders leave the alpha layer out; libvpx decodes it.
_ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}


@dataclass(frozen=True)
class VideoInfo:
    """What a video file says about itself.

    Attributes
    ----------
    path : Path
    width, height : int
        Size of the frames as shown: rotated, with square pixels.
    fps : Fraction
        Average frames a second; the source rate of a clip of constant rate.
    frames : int or None
        Frame count the container states, or an estimate from its duration; None when it states neither.
    duration : float or None
        Seconds.
    codec : str
    """

    path: Path
    width: int
    height: int
    fps: Fraction
    frames: int | None
    duration: float | None
    codec: str


class VideoReader:
    """Frames of a video file; each ``iter()`` starts at the first frame.

    Parameters
    ----------
    path : path
        A file; a directory, a playlist or a URL is an error.
    size : (width, height), optional
        Frames are cropped around the centre to this aspect, then resized to it (bicubic). Left out: frames
        keep the size they are shown at, odd sizes included.
    fps : Fraction or float, optional
        Frames a second to give (see `wavecore.media.resample`): source frames are repeated or left out by
        their times. Left out: every source frame once, whatever its time.

    Attributes
    ----------
    info : VideoInfo
    fps : Fraction
        Rate of the frames given.
    frames : int or None
        Number of frames to expect; a guide for progress, not a promise.

    Raises
    ------
    InputError
        When opened: the file is missing, empty, a directory, not a video, has no video stream or no frame.
        While reading: the file is damaged or ends early.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        size: tuple[int, int] | None = None,
        fps: Fraction | float | None = None,
    ) -> None:
        self.path = Path(path)
        if size is not None and (len(size) != 2 or min(size) < 1):
            raise UsageError(f"size: expected (width, height) of at least 1, got {size}")
        if size is not None:
            check_memory("size", _PIXEL_BYTES * size[0] * size[1], f"{size[0]}x{size[1]}")
        self._size = size
        self._target_fps = None if fps is None else frame_rate("fps", fps)
        self.info = self._read_info()
        self.fps = self._target_fps or self.info.fps
        self.frames = self.info.frames
        if self._target_fps is not None and self.frames is not None:
            self.frames = max(1, round(self.frames / self.info.fps * self._target_fps))

    def __iter__(self) -> Iterator[Frame]:
        """Yield uint8 [height, width, 3] RGB frames."""
        size = self._size or (self.info.width, self.info.height)
        with _open(self.path) as (container, stream):
            timed = _decode(container, stream, self.path)
            shown = (
                (time, duration, fit_frame(frame, *size, aspect, crop=self._size is not None))
                for time, duration, frame, aspect in timed
            )
            if self._target_fps is None:
                yield from (frame for _, _, frame in shown)
            else:
                yield from resample(shown, self._target_fps)

    def _read_info(self) -> VideoInfo:
        with _open(self.path) as (container, stream):
            _, _, frame, aspect = next(_decode(container, stream, self.path))
            fps = _frame_rate(stream)
            duration = _stated_duration(stream)
            if duration is None and container.duration:
                duration = Fraction(container.duration, 1_000_000)
            frames = stream.frames or (round(duration * fps) if duration else None)
            return VideoInfo(
                path=self.path,
                width=max(1, round(frame.shape[1] * aspect)),
                height=frame.shape[0],
                fps=fps,
                frames=frames,
                duration=None if duration is None else float(duration),
                codec=stream.codec_context.name,
            )


def read_video(
    path: str | os.PathLike[str],
    size: tuple[int, int] | None = None,
    fps: Fraction | float | None = None,
) -> Frame:
    """Read a whole clip, uint8 [n, height, width, 3]; parameters and errors as for `VideoReader`."""
    reader = VideoReader(path, size, fps)
    width, height = size or (reader.info.width, reader.info.height)
    need = _PIXEL_BYTES * width * height * (reader.frames or 1)
    check_memory("size", need, f"{reader.frames or 1} frames of {width}x{height}")
    return np.stack(list(reader))


@contextmanager
def _open(path: Path) -> Iterator[tuple[av.container.InputContainer, av.VideoStream]]:
    """Open the file and choose its video stream, or say in one line why that cannot be done."""
    _check_file(path)
    import av

    try:
        # "file:" keeps FFmpeg from reading a protocol into a name with a colon.
        container = av.open(f"file:{path}", options={"protocol_whitelist": "file"}, metadata_errors="replace")
    except (av.FFmpegError, ValueError) as error:
        raise InputError(f"{path}: {_why_not_opened(path, error)}") from None
    with container:
        if set(container.format.name.split(",")) & _REFUSED_FORMATS:
            raise InputError(f"{path}: expected a video file, got {container.format.long_name}")
        cover = av.stream.Disposition.attached_pic
        streams = [s for s in container.streams.video if not s.disposition & cover]
        if not streams:
            kinds = " and ".join(sorted({s.type for s in container.streams if s.type != "video"}))
            raise InputError(f"{path}: has no video stream, only {kinds or 'a picture'}")
        stream = streams[0]
        stream.thread_type = "AUTO"
        yield container, stream


def _check_file(path: Path) -> None:
    try:
        if path.is_dir():
            raise InputError(f"{path}: is a directory, expected a video file")
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path}: the file is empty")
    except FileNotFoundError:
        raise InputError(f"{path}: no such file") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{str(path)!r}: cannot read: {error}") from None


def _why_not_opened(path: Path, error: Exception) -> str:
    with path.open("rb") as file:
        head = file.read(12)
    if head[4:8] == b"ftyp":
        return "truncated or damaged: the mp4 index (moov) is missing or unreadable"
    return f"not a video file that FFmpeg can read ({getattr(error, 'strerror', None) or error})"


def _decode(
    container: av.container.InputContainer, stream: av.VideoStream, path: Path
) -> Iterator[tuple[Fraction, Fraction, Frame, Fraction]]:
    """Yield (time, duration, frame as shown, width of its pixels over their height)."""
    import av

    period = 1 / _frame_rate(stream)
    time_base = stream.time_base or Fraction(1, 1000)
    decoder = _alpha_decoder(stream)
    start: Fraction | None = None
    time = end = -period
    count = 0
    try:
        for packet in container.demux(stream):
            for raw in decoder.decode(packet) if decoder else packet.decode():
                stamp = time + period if raw.pts is None else raw.pts * time_base - (start or 0)
                if start is None:
                    start, stamp = stamp, Fraction(0)
                time = max(time, stamp)
                duration = raw.duration * time_base if raw.duration else period
                end = time + duration
                count += 1
                frame, aspect = _as_shown(raw, stream)
                yield time, duration, frame, aspect
    except (av.FFmpegError, ValueError) as error:
        cause = getattr(error, "strerror", None) or error
        raise InputError(f"{path}: truncated or damaged after {count} frames ({cause})") from None
    if not count:
        raise InputError(f"{path}: its video stream has no frame that can be decoded")
    stated = _stated_duration(stream)
    if stated is not None and end < stated - 2 * period:
        span = f"{float(end):.2f} s of {float(stated):.2f} s"
        raise InputError(f"{path}: truncated: ends after {count} frames ({span})")


def _alpha_decoder(stream: av.VideoStream) -> Any | None:
    """Return a decoder that keeps the alpha layer of a WebM stream, or None to use the stream's own."""
    import av

    name = _ALPHA_DECODERS.get(stream.codec_context.name)
    has_alpha = any(k.lower() == "alpha_mode" and v == "1" for k, v in stream.metadata.items())
    if not has_alpha or name not in av.codecs_available:
        return None
    return av.CodecContext.create(name, "r")


def _as_shown(raw: av.VideoFrame, stream: av.VideoStream) -> tuple[Frame, Fraction]:
    """Convert to RGB over black, turned as the metadata says."""
    has_alpha = raw.format.has_palette or any(c.is_alpha for c in raw.format.components)
    rgb = raw.reformat(format="rgba" if has_alpha else "rgb24", interpolation=ACCURATE_COLOUR)
    pixels = np.asarray(rgb.to_ndarray(), np.uint8)
    if has_alpha:
        pixels = over_black(pixels)
    matrix: Any = raw.side_data.get("DISPLAYMATRIX")
    transpose, flip_columns, flip_rows = orientation(None if matrix is None else bytes(matrix))
    aspect = Fraction(stream.sample_aspect_ratio or 1)
    if aspect <= 0:
        aspect = Fraction(1)
    frame = orient(pixels, transpose, flip_columns, flip_rows)
    return frame, 1 / aspect if transpose else aspect


def _frame_rate(stream: av.VideoStream) -> Fraction:
    """Average rate; the guessed rate, then 25 (FFmpeg's own default), where the container states none."""
    return Fraction(stream.average_rate or stream.guessed_rate or 25)


def _stated_duration(stream: av.VideoStream) -> Fraction | None:
    """Duration of the video stream in seconds; Matroska keeps it as text, h:m:s."""
    if stream.duration is not None and stream.time_base is not None:
        return stream.duration * stream.time_base
    text = stream.metadata.get("DURATION")
    if text is None:
        return None
    try:
        hours, minutes, seconds = text.strip().split(":")
        return int(hours) * 3600 + int(minutes) * 60 + Fraction(seconds)
    except ValueError:
        return None
