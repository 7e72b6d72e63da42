"""Groups on the wire and in recordings."""

from __future__ import annotations

import av
import numpy as np
import pytest
from support.serving import picture, read_picture

from wavecore.serve.encode import H264Encoder, JpegEncoder, decode_jpeg
from wavecore.serve.recording import Recorder

SIZE = (64, 48)


def frames_of(position, version=0, count=4, size=SIZE):
    return np.stack([picture(version, position, frame, size) for frame in range(count)])


def decode(units):
    context = av.CodecContext.create("h264", "r")
    images = [f for unit in units for f in context.decode(av.Packet(unit))]
    images += context.decode(None)
    return [image.to_ndarray(format="rgb24") for image in images]


def test_every_group_decodes_on_its_own():
    encoder = H264Encoder(SIZE, 16)
    for position in range(6):
        source = frames_of(position, version=position // 2)
        units = encoder.encode(source)
        assert len(units) == 4, "no delay"
        images = decode(units)
        assert len(images) == 4
        assert [read_picture(image) for image in images] == [(position // 2, position)] * 4
        assert np.abs(np.stack(images).astype(int) - source).mean() < 3


def test_the_codec_string_is_baseline():
    assert H264Encoder(SIZE, 16).decoder.startswith("avc1.42C0")


def test_odd_sizes_are_made_even():
    (image,) = decode(H264Encoder((33, 47), 16).encode(frames_of(1, count=1, size=(33, 47))))
    assert image.shape == (48, 34, 3)


def test_jpeg_files_are_the_frames():
    source = frames_of(3)
    assert np.abs(decode_jpeg(JpegEncoder().encode(source)).astype(int) - source).mean() < 2


@pytest.mark.parametrize("jpeg", [False, True])
def test_a_recording_holds_what_was_added_and_plays_at_any_moment(tmp_path, jpeg):
    path = tmp_path / "take.mp4"
    encoder = H264Encoder(SIZE, 16)
    recorder = Recorder(path, encoder, 16, jpeg)
    shown = [5, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]  # left out and played again
    for position in shown:
        recorder.add((JpegEncoder() if jpeg else encoder).encode(frames_of(position)))
    unfinished = tmp_path / "unfinished.mp4"
    unfinished.write_bytes(path.read_bytes())
    recorder.close()
    for file, least in ((unfinished, 32), (path, 48)):
        with av.open(str(file)) as container:
            assert container.streams.video[0].average_rate == 16
            positions = [read_picture(f.to_ndarray(format="rgb24"))[1] for f in container.decode(video=0)]
        assert len(positions) >= least
        assert positions == [p for p in shown for _ in range(4)][: len(positions)]


def test_a_recording_without_a_frame_leaves_no_file(tmp_path):
    recorder = Recorder(tmp_path / "take.mp4", H264Encoder(SIZE, 16), 16, False)
    recorder.close()
    recorder.close()
    assert list(tmp_path.iterdir()) == []
