"""Reading video files: every rule of docs/media.md, on clips made here and on a real one."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
from PIL import Image
from support.clips import (
    corner_frame,
    corners,
    counting_frames,
    cut,
    frame_numbers,
    set_matrix,
    write_audio,
    write_clip,
)

from wavecore.errors import InputError, UsageError
from wavecore.media import VideoReader, read_video

DOG = Path(__file__).resolve().parents[2] / "examples" / "dog.mp4"


@pytest.mark.parametrize("count", [1, 2, 5, 83])
def test_clip_of_n_frames_gives_n_frames(tmp_path: Path, count: int) -> None:
    path = write_clip(tmp_path / "clip.mp4", counting_frames(count))
    reader = VideoReader(path)
    assert reader.frames == count
    assert reader.fps == 16
    assert frame_numbers(list(reader)) == [i % 16 for i in range(count)]
    assert frame_numbers(list(reader)) == [i % 16 for i in range(count)], "a second pass starts over"


@pytest.mark.parametrize("suffix", ["mp4", "mkv", "mov", "avi", "ts"])
@pytest.mark.parametrize("fps", [Fraction(16), Fraction(30000, 1001), Fraction(60)])
def test_own_rate_gives_every_frame_once(tmp_path: Path, suffix: str, fps: Fraction) -> None:
    """Containers round times differently (Matroska to milliseconds); the frames must not notice."""
    codec = "mpeg4" if suffix == "avi" else "libx264"
    path = write_clip(tmp_path / f"clip.{suffix}", counting_frames(83), fps=fps, codec=codec)
    assert frame_numbers(read_video(path, fps=fps)) == [i % 16 for i in range(83)]


def test_target_rate_repeats_and_leaves_out(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", counting_frames(12), fps=16)
    assert frame_numbers(read_video(path, fps=32)) == [i // 2 for i in range(24)]
    assert frame_numbers(read_video(path, fps=8)) == [0, 2, 4, 6, 8, 10]
    reader = VideoReader(path, fps=8)
    assert (reader.fps, reader.frames) == (8, 6)


def test_variable_rate(tmp_path: Path) -> None:
    times = [Fraction(t, 8) for t in (0, 1, 2, 4, 8, 9)]
    path = write_clip(tmp_path / "clip.mp4", counting_frames(6), times=times)
    assert frame_numbers(read_video(path)) == [0, 1, 2, 3, 4, 5]
    assert frame_numbers(read_video(path, fps=8))[:10] == [0, 1, 2, 2, 3, 3, 3, 3, 4, 5]


@pytest.mark.parametrize(("width", "height"), [(63, 47), (848, 478), (1, 1), (17, 2)])
def test_odd_sizes_are_kept(tmp_path: Path, width: int, height: int) -> None:
    frames = counting_frames(3, width, height)
    path = write_clip(tmp_path / "clip.mkv", frames, codec="ffv1", pixel_format="bgr0")
    np.testing.assert_array_equal(read_video(path), frames)


# A display matrix takes the pixel (x, y) to (a x + c y, b x + d y), y pointing down.
@pytest.mark.parametrize(
    ("matrix", "size", "quarters"),
    [
        ((1, 0, 0, 1), (64, 32), ["red", "green", "blue", "black"]),
        ((0, 1, -1, 0), (32, 64), ["blue", "red", "black", "green"]),  # a quarter turn clockwise
        ((-1, 0, 0, -1), (64, 32), ["black", "blue", "green", "red"]),
        ((0, -1, 1, 0), (32, 64), ["green", "black", "red", "blue"]),
        ((-1, 0, 0, 1), (64, 32), ["green", "red", "black", "blue"]),  # mirrored, as a front camera does
    ],
)
def test_rotation_metadata(
    tmp_path: Path, matrix: tuple[int, int, int, int], size: tuple[int, int], quarters: list[str]
) -> None:
    path = write_clip(tmp_path / "clip.mp4", np.stack([corner_frame(64, 32)] * 2))
    set_matrix(path, *matrix)
    reader = VideoReader(path)
    assert (reader.info.width, reader.info.height) == size
    for frame in reader:
        assert frame.shape == (size[1], size[0], 3)
        assert corners(frame) == quarters


def test_pixels_are_made_square(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mp4", np.stack([corner_frame(64, 32)]), pixel_aspect=Fraction(3, 2))
    reader = VideoReader(path)
    assert (reader.info.width, reader.info.height) == (96, 32)
    (frame,) = reader
    assert frame.shape == (32, 96, 3)
    assert corners(frame) == ["red", "green", "blue", "black"]
    (square,) = read_video(path, size=(32, 32))
    assert corners(square) == ["red", "green", "blue", "black"]


@pytest.mark.parametrize(
    ("suffix", "codec", "pixel_format"),
    [("mov", "png", "rgba"), ("mov", "qtrle", "argb"), ("webm", "libvpx-vp9", "yuva420p")],
)
def test_alpha_is_composited_over_black(tmp_path: Path, suffix: str, codec: str, pixel_format: str) -> None:
    frames = np.zeros((3, 32, 32, 4), np.uint8)
    frames[..., :3] = 200
    frames[:, :, :16, 3] = 255
    frames[:, :, 16:, 3] = 128
    path = write_clip(
        tmp_path / f"clip.{suffix}", frames, codec=codec, pixel_format=pixel_format, source_format="rgba"
    )
    read = read_video(path)
    assert read.shape == (3, 32, 32, 3)
    assert abs(int(read[1, 16, 8].mean()) - 200) <= 4
    assert abs(int(read[1, 16, 24].mean()) - 100) <= 4


def test_centre_crop_then_resize(tmp_path: Path) -> None:
    frame = np.zeros((40, 100, 3), np.uint8)
    frame[:, :30] = (255, 0, 0)
    frame[:, 30:70] = (0, 255, 0)
    frame[:, 70:] = (0, 0, 255)
    path = write_clip(tmp_path / "clip.mkv", frame[None], codec="ffv1", pixel_format="bgr0")
    (fitted,) = read_video(path, size=(20, 20))
    assert fitted.shape == (20, 20, 3)
    np.testing.assert_array_equal(fitted[10, :, 1], 255)  # only the middle 40 columns are left
    expected = Image.fromarray(frame[:, 30:70]).resize((20, 20), Image.Resampling.BICUBIC)
    np.testing.assert_array_equal(fitted, np.array(expected))


@pytest.mark.parametrize("suffix", ["mp4", "mkv"])
@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}], ids=["index-last", "index-first"])
def test_truncated(tmp_path: Path, suffix: str, fraction: float, options: dict[str, str]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 48, 64, 3), dtype=np.uint8)
    path = write_clip(
        tmp_path / f"clip.{suffix}", noise, container_options=options if suffix == "mp4" else {}
    )
    cut(path, fraction)
    with pytest.raises(InputError, match=r"clip\.(mp4|mkv): truncated"):
        read_video(path)


def test_edit_list_is_no_truncation(tmp_path: Path) -> None:
    """A clip trimmed by its container plays fewer frames than it stores; that is no damage."""
    path = write_clip(tmp_path / "clip.mp4", counting_frames(48))
    data = bytearray(path.read_bytes())
    position = data.index(b"elst") + 12
    data[position : position + 4] = (1000).to_bytes(4, "big")  # milliseconds
    path.write_bytes(data)
    assert 16 <= len(read_video(path)) <= 18


def test_audio_only(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"sound\.m4a: has no video stream, only audio"):
        VideoReader(write_audio(tmp_path / "sound.m4a"))


def test_not_a_video(tmp_path: Path) -> None:
    cases = {
        "empty.mp4": (b"", "empty.mp4: the file is empty"),
        "notes.txt": (b"some text\n" * 100, "notes.txt: expected a video file, got"),
        "noise.mp4": (bytes(range(256)) * 40, "noise.mp4: not a video file"),
        "list.m3u8": (b"#EXTM3U\n#EXT-X-TARGETDURATION:1\n#EXTINF:1,\na.ts\n#EXT-X-ENDLIST\n", "list.m3u8: "),
    }
    for name, (content, message) in cases.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InputError) as caught:
            VideoReader(tmp_path / name)
        assert message in str(caught.value)
        assert "\n" not in str(caught.value)


def test_bad_paths(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is a directory, expected a video file"):
        VideoReader(tmp_path)
    with pytest.raises(InputError, match=r"none\.mp4: no such file"):
        VideoReader(tmp_path / "none.mp4")
    with pytest.raises(InputError, match="no such file"):
        VideoReader("http://localhost/clip.mp4")
    with pytest.raises(InputError, match="null"):
        VideoReader("a\0b.mp4")


def test_name_with_a_colon(tmp_path: Path) -> None:
    made = write_clip(tmp_path / "clip.mp4", counting_frames(2))
    assert len(read_video(made.rename(tmp_path / "http:clip.mp4"))) == 2


@pytest.mark.parametrize("fps", [0, -1, float("nan"), float("inf")])
def test_bad_fps(tmp_path: Path, fps: float) -> None:
    with pytest.raises(UsageError, match="fps: expected a finite number above 0"):
        VideoReader(tmp_path / "any.mp4", fps=fps)


def test_wide_range_and_ten_bits(tmp_path: Path) -> None:
    path = write_clip(tmp_path / "clip.mkv", counting_frames(4), codec="ffv1", pixel_format="yuv420p10le")
    assert frame_numbers(read_video(path)) == [0, 1, 2, 3]


def test_real_clip() -> None:
    reader = VideoReader(DOG, size=(128, 128))
    frames = list(reader)
    assert (len(frames), reader.fps, reader.frames) == (81, 16, 81)
    with av.open(str(DOG)) as container:
        image = next(container.decode(video=0)).to_image()
    image = image.crop((176, 0, 656, 480)).resize((128, 128), Image.Resampling.BICUBIC)
    assert np.abs(np.array(image).astype(int) - frames[0]).mean() < 2
