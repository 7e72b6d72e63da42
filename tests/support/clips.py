"""Test clips made with PyAV."""

from __future__ import annotations

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

RED, GREEN, BLUE = (255, 0, 0), (0, 255, 0), (0, 0, 255)


def counting_frames(count: int, width: int = 64, height: int = 48) -> np.ndarray:
    """Frames [count, height, width, 3] whose grey level tells their index apart: 16 levels, 12 apart."""
    levels = 20 + 12 * (np.arange(count) % 16)
    return np.broadcast_to(levels[:, None, None, None], (count, height, width, 3)).astype(np.uint8)


def frame_numbers(frames: np.ndarray) -> list[int]:
    """Read the index modulo 16 back from frames of `counting_frames`."""
    levels = np.stack(list(frames)).reshape(len(frames), -1).mean(axis=1)
    return [round(float(level - 20) / 12) for level in levels]


def corner_frame(width: int, height: int) -> np.ndarray:
    """A frame with a red top left, a green top right and a blue bottom left quarter, black elsewhere."""
    frame = np.zeros((height, width, 3), np.uint8)
    frame[: height // 2, : width // 2] = RED
    frame[: height // 2, width // 2 :] = GREEN
    frame[height // 2 :, : width // 2] = BLUE
    return frame


def corners(frame: np.ndarray) -> list[str]:
    """Name the colours in the middle of the quarters: top left, top right, bottom left, bottom right."""
    height, width = frame.shape[:2]
    names = []
    for y in (height // 4, 3 * height // 4):
        for x in (width // 4, 3 * width // 4):
            colour = frame[y, x].astype(int)
            names.append("black" if colour.max() < 60 else ("red", "green", "blue")[int(colour.argmax())])
    return names


def write_clip(
    path: Path,
    frames: np.ndarray,
    fps: Fraction | int = 16,
    times: list[Fraction] | None = None,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    pixel_aspect: Fraction | None = None,
    source_format: str = "rgb24",
    container_options: dict[str, str] | None = None,
) -> Path:
    """Encode frames [n, h, w, 3 or 4]; `times` in seconds makes a variable-rate clip."""
    with av.open(str(path), "w", options=container_options or {}) as container:
        stream = container.add_stream(codec, rate=fps)
        stream.height, stream.width = frames.shape[1:3]
        stream.pix_fmt = pixel_format
        if pixel_aspect is not None:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if times is not None:
            stream.codec_context.time_base = Fraction(1, 1000)
        for index, frame in enumerate(frames):
            raw = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), source_format)
            raw = raw.reformat(format=pixel_format)
            if times is None:
                raw.pts, raw.time_base = index, 1 / Fraction(fps)
            else:
                raw.pts, raw.time_base = round(times[index] * 1000), Fraction(1, 1000)
            container.mux(stream.encode(raw))
        container.mux(stream.encode())
    return path


def write_audio(path: Path) -> Path:
    """Half a second of silence in an audio-only file."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("aac", rate=48000)
        for index in range(24):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1024), np.float32), "fltp", "mono")
            frame.sample_rate, frame.pts = 48000, index * 1024
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def set_matrix(path: Path, a: int, b: int, c: int, d: int) -> None:
    """Write a display matrix (16.16 fixed point, ISO 14496-12 section 8.3.2) into an mp4's track header."""
    data = bytearray(path.read_bytes())
    position = data.index(b"tkhd") + 4
    assert data[position] == 0, "version 0 track header"
    values = (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    data[position + 40 : position + 76] = struct.pack(">9i", *values)
    path.write_bytes(data)


def cut(path: Path, fraction: float) -> Path:
    """Keep the first part of a file's bytes."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * fraction)])
    return path
