"""Writing videos, frame directories, latents and contact sheets: complete or not there at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.clips import corner_frame, corners, counting_frames, frame_numbers

from wavecore.errors import InputError, UsageError
from wavecore.media import (
    FrameDirectoryWriter,
    FramePicker,
    FrameSink,
    VideoReader,
    VideoWriter,
    contact_sheet,
    read_video,
    save_contact_sheet,
    write_latents,
)


def video(path: Path) -> FrameSink:
    return VideoWriter(path.with_suffix(".mp4"), fps=16)


SINKS: list[Callable[[Path], FrameSink]] = [video, FrameDirectoryWriter]
both = pytest.mark.parametrize("make", SINKS, ids=["video", "directory"])


@pytest.mark.parametrize("fps", [16, Fraction(30000, 1001), 7.5])
@pytest.mark.parametrize("count", [1, 2, 5, 83])
def test_video_round_trip(tmp_path: Path, count: int, fps: Fraction | float) -> None:
    frames = counting_frames(count)
    with VideoWriter(tmp_path / "out.mp4", fps) as writer:
        for frame in frames:
            writer.write(frame)
    assert writer.frames == count
    reader = VideoReader(tmp_path / "out.mp4")
    assert (reader.fps, reader.frames) == (Fraction(fps), count)
    assert frame_numbers(list(reader)) == [i % 16 for i in range(count)]
    assert os.listdir(tmp_path) == ["out.mp4"]


def test_video_format(tmp_path: Path) -> None:
    """What players need: H.264, yuv420p, the index first, colours tagged and right."""
    with VideoWriter(tmp_path / "out.mp4", 16) as writer:
        writer.write(np.stack([corner_frame(64, 48)] * 3))
    with av.open(str(tmp_path / "out.mp4")) as container:
        stream = container.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        frame = next(container.decode(stream))
        assert (frame.colorspace, frame.color_range) == (1, 1)
    data = (tmp_path / "out.mp4").read_bytes()
    assert data.index(b"moov") < data.index(b"mdat")
    frame = read_video(tmp_path / "out.mp4")[0]
    assert corners(frame) == ["red", "green", "blue", "black"]
    assert abs(frame[12, 16].astype(int) - (255, 0, 0)).max() <= 3


@pytest.mark.parametrize(("width", "height"), [(63, 47), (1, 1), (64, 47), (848, 478)])
def test_odd_sizes_repeat_the_last_column_and_row(tmp_path: Path, width: int, height: int) -> None:
    with VideoWriter(tmp_path / "out.mp4", 16, crf=0) as writer:
        writer.write(np.full((2, height, width, 3), 200, np.uint8))
    frames = read_video(tmp_path / "out.mp4")
    assert frames.shape == (2, height + height % 2, width + width % 2, 3)
    assert abs(frames.astype(int) - 200).max() <= 2, "the added pixels carry the colour of their neighbours"


def test_directory_round_trip(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 255, (3, 7, 5, 3), dtype=np.uint8)
    with FrameDirectoryWriter(tmp_path / "out") as writer:
        writer.write(frames[:2])
        writer.write(frames[2])
    assert sorted(os.listdir(tmp_path / "out")) == ["000000.png", "000001.png", "000002.png"]
    for index, frame in enumerate(frames):
        np.testing.assert_array_equal(np.array(Image.open(tmp_path / "out" / f"{index:06d}.png")), frame)
    assert os.listdir(tmp_path) == ["out"]


def test_frames_are_copied(tmp_path: Path) -> None:
    buffer = counting_frames(1)[0].copy()
    with VideoWriter(tmp_path / "out.mp4", 16) as writer:
        for level in counting_frames(16)[:, 0, 0, 0]:
            buffer[:] = level
            writer.write(buffer)
    assert frame_numbers(read_video(tmp_path / "out.mp4")) == list(range(16))


@both
def test_after_the_end_no_frame_is_taken(tmp_path: Path, make: Callable[[Path], FrameSink]) -> None:
    with make(tmp_path / "out") as sink:
        sink.write(counting_frames(2))
        sink.close()
    sink.close()
    with pytest.raises(UsageError, match="expected an open output, got one that is complete or given up"):
        sink.write(counting_frames(1))
    with pytest.raises(KeyError), make(tmp_path / "other") as sink:
        raise KeyError
    with pytest.raises(UsageError, match="expected an open output"):
        sink.write(counting_frames(1))


@both
def test_interrupt_keeps_the_frames_so_far(tmp_path: Path, make: Callable[[Path], FrameSink]) -> None:
    sink = make(tmp_path / "out")
    with pytest.raises(KeyboardInterrupt), sink:
        sink.write(counting_frames(5))
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == [sink.path.name]
    if sink.path.is_dir():
        assert len(os.listdir(sink.path)) == 5
    else:
        assert frame_numbers(read_video(sink.path)) == [0, 1, 2, 3, 4]


@both
@pytest.mark.parametrize("interrupted", [False, True], ids=["first", "second"])
def test_an_interrupt_waits_until_the_output_is_complete(
    tmp_path: Path, make: Callable[[Path], FrameSink], interrupted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = make(tmp_path / "out")
    finish = sink._finish

    def finish_late() -> None:  # in the thread that encodes, which the main one waits for
        for _ in range(2):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.05)
        finish()

    monkeypatch.setattr(sink, "_finish", finish_late)
    with pytest.raises(KeyboardInterrupt), sink:
        sink.write(counting_frames(5))
        if interrupted:
            raise KeyboardInterrupt
    assert os.listdir(tmp_path) == [sink.path.name]
    assert (len(os.listdir(sink.path)) if sink.path.is_dir() else len(read_video(sink.path))) == 5


@both
def test_error_leaves_nothing(tmp_path: Path, make: Callable[[Path], FrameSink]) -> None:
    sink = make(tmp_path / "out")
    with pytest.raises(RuntimeError, match="model"), sink:
        sink.write(counting_frames(5))
        raise RuntimeError("model failed")
    assert os.listdir(tmp_path) == []


def test_error_keeps_the_earlier_file(tmp_path: Path) -> None:
    (tmp_path / "out.mp4").write_bytes(b"earlier")
    with pytest.raises(RuntimeError), VideoWriter(tmp_path / "out.mp4", 16) as writer:
        writer.write(counting_frames(5))
        raise RuntimeError
    assert (tmp_path / "out.mp4").read_bytes() == b"earlier"
    assert os.listdir(tmp_path) == ["out.mp4"]


@both
def test_no_frame_is_an_error(tmp_path: Path, make: Callable[[Path], FrameSink]) -> None:
    with pytest.raises(InputError, match="there is no frame"), make(tmp_path / "out"):
        pass
    with pytest.raises(KeyboardInterrupt), make(tmp_path / "out"):
        raise KeyboardInterrupt
    assert os.listdir(tmp_path) == []


@both
def test_wrong_frames(tmp_path: Path, make: Callable[[Path], FrameSink]) -> None:
    for frames, message in [
        (np.zeros((4, 4), np.uint8), "expected uint8"),
        (np.zeros((4, 4, 4), np.uint8), "expected uint8"),
        (np.zeros((4, 4, 3), np.float32), "expected uint8"),
        (np.zeros((1, 0, 4, 3), np.uint8), "expected size at least 1x1"),
    ]:
        with pytest.raises(UsageError, match=message), make(tmp_path / "out") as sink:
            sink.write(frames)
    with (
        pytest.raises(UsageError, match="frame 2: expected size 8x4, got 4x8"),
        make(tmp_path / "out") as sink,
    ):
        sink.write(np.zeros((2, 4, 8, 3), np.uint8))
        sink.write(np.zeros((2, 8, 4, 3), np.uint8))
    assert os.listdir(tmp_path) == []


def test_paths_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("")
    for make, path, message in [
        (lambda p: VideoWriter(p, 16), "none/out.mp4", "its directory does not exist"),
        (lambda p: VideoWriter(p, 16), "file/out.mp4", "its parent is not a directory"),
        (lambda p: VideoWriter(p, 16), "out\0.mp4", "null"),
        (FrameDirectoryWriter, "full", "expected a new or empty directory"),
        (FrameDirectoryWriter, "file", "expected a new or empty directory"),
        (FrameDirectoryWriter, "none/out", "its directory does not exist"),
    ]:
        with pytest.raises(InputError, match=message):
            make(tmp_path / path)
    (tmp_path / "dir.mp4").mkdir()
    with pytest.raises(InputError, match="is a directory"):
        VideoWriter(tmp_path / "dir.mp4", 16)
    with pytest.raises(UsageError, match=r"ends in \.mp4"):
        VideoWriter(tmp_path / "out.avi", 16)
    with pytest.raises(UsageError, match="fps"):
        VideoWriter(tmp_path / "out.mp4", 0)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(InputError, match="permission denied"):
        VideoWriter(tmp_path / "out.mp4", 16)


@pytest.mark.parametrize("limit", [0, 100, 3_000, 60_000])
@pytest.mark.parametrize("make", ["VideoWriter(path, 16)", "FrameDirectoryWriter(path)"])
def test_file_size_limit(tmp_path: Path, make: str, limit: int) -> None:
    """A write that fails, at any point of the file, is one line and leaves nothing.

    A limit on the file size stands for the full disk: the same calls fail, with no file system to fill.
    """
    program = f"""
        import resource, signal, sys
        import numpy as np
        from wavecore.errors import InputError
        from wavecore.media import FrameDirectoryWriter, VideoWriter
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
        path = {str(tmp_path / "out.mp4")!r}
        frames = np.random.default_rng(0).integers(0, 255, (60, 200, 200, 3), dtype=np.uint8)
        try:
            with {make} as writer:
                for frame in frames:
                    writer.write(frame)
        except InputError as error:
            print(error)
        else:
            sys.exit("written all the same")
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (
        done.stdout
        == f"{tmp_path / 'out.mp4'}: cannot write: the file would grow past the allowed file size\n"
    )
    assert os.listdir(tmp_path) == []


def test_latents_round_trip(tmp_path: Path) -> None:
    latents = torch.randn(3, 16, 4, 4).to(torch.bfloat16)
    write_latents(tmp_path / "out.safetensors", latents[:, :, ::2])
    loaded = load_file(tmp_path / "out.safetensors")
    assert list(loaded) == ["latents"]
    assert torch.equal(loaded["latents"], latents[:, :, ::2])
    assert os.listdir(tmp_path) == ["out.safetensors"]
    with pytest.raises(InputError, match="its directory does not exist"):
        write_latents(tmp_path / "none" / "out.safetensors", latents)
    with pytest.raises(UsageError, match="expected \\[frames, channels, height, width\\]"):
        write_latents(tmp_path / "out.safetensors", latents[0])


def test_contact_sheet(tmp_path: Path) -> None:
    frames = counting_frames(5, width=6, height=4)
    sheet = contact_sheet(frames, columns=3, gap=1)
    assert sheet.shape == (4 * 2 + 1, 6 * 3 + 2, 3)
    for index, frame in enumerate(frames):
        top, left = index // 3 * 5, index % 3 * 7
        np.testing.assert_array_equal(sheet[top : top + 4, left : left + 6], frame)
    assert contact_sheet(frames[:2], columns=8).shape == (4, 14, 3), "no wider than its frames"
    save_contact_sheet(tmp_path / "sheet.png", frames, columns=3, gap=1)
    np.testing.assert_array_equal(np.array(Image.open(tmp_path / "sheet.png")), sheet)
    with pytest.raises(UsageError, match="at least one frame"):
        contact_sheet([])
    with pytest.raises(UsageError, match="columns"):
        contact_sheet(frames, columns=0)
    with pytest.raises(UsageError, match=r"frames\[1\]"):
        contact_sheet([frames[0], frames[0][:2]])


@pytest.mark.parametrize("count", [1, 2, 7, 16])
@pytest.mark.parametrize("total", [1, 3, 16, 81, 1000])
def test_frame_picker(count: int, total: int) -> None:
    picker = FramePicker(count)
    for index in range(total):
        picker.add(np.full((1, 1, 3), index % 256, np.uint8))
        assert len(picker._kept) <= 2 * count
    picked = picker.frames()
    assert len(picked) == min(count, total)
    assert picked[0][0, 0, 0] == 0
