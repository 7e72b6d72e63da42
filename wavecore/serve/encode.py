"""Groups of frames as H.264 access units or JPEG files. Each group begins with a key frame.

A group is the unit that is dropped, kept to go back to, and recorded, so each can be decoded on its own.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from wavecore.arguments import frame_rate
from wavecore.errors import UsageError
from wavecore.media.colour import even, to_yuv420

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wavecore.serve.protocol import Codec

_QUALITY = 90  # of JPEG
_CRF = 20  # of x264


@dataclass(frozen=True)
class EncodedGroup:
    """One position as it is sent.

    Attributes
    ----------
    position, version : int
    pts : float
        Time of the first frame in the video, in seconds.
    ready, due : float
        Server's seconds: pixels there, and to be shown.
    spacing : float
        Seconds from one frame to the next.
    units : tuple of bytes
        One a frame.
    """

    position: int
    version: int
    pts: float
    ready: float
    due: float
    spacing: float
    units: tuple[bytes, ...]

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.units))


class Encoder(Protocol):
    """Turns frames into bytes; used by one thread."""

    decoder: str

    def encode(self, frames: NDArray[np.uint8]) -> tuple[bytes, ...]:
        """Encode the frames uint8 [n, h, w, 3] of a group."""


class H264Encoder:
    """x264 with no delay, one thread.

    Parameters
    ----------
    size : (width, height)
    fps : float

    Attributes
    ----------
    decoder : str
        Codec string of RFC 6381, from the sequence parameter set.
    sample : bytes
        A key frame with its parameter sets, Annex B.
    """

    def __init__(self, size: tuple[int, int], fps: float) -> None:
        import av

        if "libx264" not in av.codecs_available:
            raise UsageError("codec: expected a PyAV with libx264 for h264, got one without it")
        context: Any = av.CodecContext.create("libx264", "w")
        context.width, context.height = size[0] + size[0] % 2, size[1] + size[1] % 2
        context.pix_fmt = "yuv420p"
        context.framerate = frame_rate("fps", fps)
        context.time_base = 1 / context.framerate
        context.colorspace = context.color_primaries = context.color_trc = context.color_range = 1  # BT.709
        context.thread_count = 1
        context.options = {
            "preset": "ultrafast",
            "tune": "zerolatency",
            "crf": str(_CRF),
            "forced-idr": "1",
            "x264-params": "repeat-headers=1:annexb=1:scenecut=0:keyint=infinite",
        }
        self._context = context
        self._intra = av.video.frame.PictureType.I
        self._frames = 0
        # The headers come with the first key frame, so a grey one is encoded to have them at once.
        self.sample = self.encode(np.full((1, context.height, context.width, 3), 128, np.uint8))[0]
        sps = self.sample.index(b"\0\0\1\x67") + 4
        self.decoder = "avc1.{:02X}{:02X}{:02X}".format(*self.sample[sps : sps + 3])

    def encode(self, frames: NDArray[np.uint8]) -> tuple[bytes, ...]:
        """Encode a group; the first frame becomes a key frame."""
        units = []
        for index, frame in enumerate(even(frames)):
            raw = to_yuv420(frame)
            raw.pts, raw.time_base = self._frames, self._context.time_base
            if index == 0:
                raw.pict_type = self._intra
            self._frames += 1
            units.append(b"".join(bytes(packet) for packet in self._context.encode(raw)))
        return tuple(units)


class JpegEncoder:
    """One JPEG file a frame: for viewers without an H.264 decoder."""

    decoder = "image/jpeg"

    def encode(self, frames: NDArray[np.uint8]) -> tuple[bytes, ...]:
        """Encode a group."""
        from PIL import Image

        units = []
        for frame in frames:
            file = io.BytesIO()
            Image.fromarray(frame).save(file, "JPEG", quality=_QUALITY, subsampling=0)
            units.append(file.getvalue())
        return tuple(units)


def make_encoder(codec: Codec, size: tuple[int, int], fps: float) -> H264Encoder | JpegEncoder:
    """Make the encoder of a session."""
    return H264Encoder(size, fps) if codec == "h264" else JpegEncoder()


def decode_jpeg(units: Sequence[bytes]) -> NDArray[np.uint8]:
    """Frames uint8 [n, h, w, 3] of JPEG files of one size."""
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(unit)).convert("RGB")) for unit in units])
