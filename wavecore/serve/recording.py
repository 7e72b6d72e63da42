"""An mp4 of what the viewer saw, complete at any moment: fragmented, so that a crash leaves it playable."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from wavecore.arguments import frame_rate
from wavecore.serve.encode import H264Encoder, decode_jpeg

_FRAGMENT_SECONDS = 1


class Recorder:
    """Writes displayed groups one after the other at a constant frame rate.

    Parameters
    ----------
    path : path
        Ends in ``.mp4``.
    encoder : H264Encoder
        Its sample describes the track; it also encodes what was sent as JPEG, and must then not be
        used by others.
    fps : float
    jpeg : bool
        Whether groups are JPEG files.

    Attributes
    ----------
    frames : int
        Written so far.
    """

    def __init__(self, path: Path, encoder: H264Encoder, fps: float, jpeg: bool) -> None:
        import av

        self.path = path
        self.frames = 0
        self._encoder = encoder if jpeg else None
        rate = frame_rate("fps", fps)
        options = {
            "movflags": "empty_moov+default_base_moof",
            "frag_duration": str(_FRAGMENT_SECONDS * 1_000_000),
            "flush_packets": "1",
        }
        self._container: Any = av.open(str(path), "w", format="mp4", options=options)
        with av.open(io.BytesIO(encoder.sample), format="h264") as sample:
            stream: Any = self._container.add_stream_from_template(sample.streams.video[0])
        stream.time_base = self._time_base = 1 / rate
        self._stream = stream

    def add(self, units: Sequence[bytes]) -> None:
        """Write the access units (or JPEG files) of a group."""
        import av

        if self._container is None:
            return
        if self._encoder is not None:
            units = self._encoder.encode(decode_jpeg(units))
        for index, unit in enumerate(units):
            packet = av.Packet(unit)
            packet.stream = self._stream
            packet.time_base = self._time_base
            packet.pts = packet.dts = self.frames
            packet.duration = 1
            packet.is_keyframe = index == 0
            self.frames += 1
            self._container.mux(packet)

    def close(self) -> None:
        """Finish the file; without a frame nothing is left."""
        if self._container is None:
            return
        container, self._container = self._container, None
        container.close()
        if not self.frames:
            self.path.unlink(missing_ok=True)
