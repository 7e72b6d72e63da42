"""Measures of edited video, on motion that is known."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from scipy import ndimage

from wavecore.errors import UsageError
from wavecore.media import read_video
from wavecore.metrics import SourceMotion, drift, flicker, frame_similarity, optical_flow, warp_error

DOG = Path(__file__).resolve().parents[1] / "examples" / "dog.mp4"


def texture(seed: int = 0, size: int = 192) -> np.ndarray:
    """A smooth random picture [size, size, 3] as float in 0..255."""
    noise = np.random.default_rng(seed).standard_normal((size, size, 3))
    smooth = ndimage.gaussian_filter(noise, (2, 2, 0), mode="wrap")
    return 127.5 + 50 * smooth / smooth.std()


def panned(picture: np.ndarray, steps: list[tuple[float, float]]) -> np.ndarray:
    """Frames uint8 [n, 128, 128, 3] that look at `picture` through a window moved by (x, y)."""
    frames = []
    for x, y in steps:
        moved = ndimage.shift(picture, (-y - 32, -x - 32, 0), order=3, mode="grid-wrap")
        frames.append(moved[:128, :128].clip(0, 255))
    return np.stack(frames).round().astype(np.uint8)


def grey(frame: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(frame.astype(np.float32).mean(-1))[None, None]


@pytest.mark.parametrize("shift", [(0, 0), (0.4, -0.7), (3, 1), (-6, 5), (10.5, 0)])
def test_flow_of_a_pan(shift: tuple[float, float]) -> None:
    first, second = panned(texture(), [(0, 0), shift])
    flow = optical_flow(grey(first), grey(second))[0, :, 16:-16, 16:-16]
    error = (flow + torch.tensor(shift)[:, None, None]).norm(dim=0)
    assert error.mean() < 0.1


def test_flow_of_a_zoom_and_turn() -> None:
    picture = texture()[:128, :128]
    angle, zoom = np.deg2rad(3), 1.03
    matrix = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]]) / zoom
    centre = np.array([63.5, 63.5])
    offset = centre - matrix @ centre
    turned = np.stack(
        [ndimage.affine_transform(plane, matrix, offset) for plane in picture.transpose(2, 0, 1)], -1
    )
    flow = optical_flow(grey(picture), grey(turned))[0].numpy()
    y, x = np.mgrid[:128, :128]
    there = np.linalg.inv(matrix) @ (np.stack([y.ravel(), x.ravel()]) - centre[:, None]) + centre[:, None]
    expected = np.stack([there[1].reshape(128, 128) - x, there[0].reshape(128, 128) - y])
    error = np.linalg.norm(flow - expected, axis=0)[20:-20, 20:-20]
    assert error.mean() < 0.15


def test_edit_that_follows_the_motion() -> None:
    steps = [(0, 0), (2, 1), (4, 2), (7, 2)]
    source, edited = panned(texture(0), steps), panned(texture(1), steps)
    assert warp_error(source, source) < 1
    assert warp_error(source, edited) < 3
    assert warp_error(source, 255 - source) < 1, "another colour at each place, moving along"
    along = SourceMotion(source)
    assert along.warp_error(edited) == along.warp_error(edited) == warp_error(source, edited)


def test_edit_that_stands_still() -> None:
    source = panned(texture(0), [(0, 0), (4, 0), (8, 0)])
    still = panned(texture(1), [(0, 0)] * 3)
    expected = np.abs(panned(texture(1), [(0, 0)])[0].astype(float) - panned(texture(1), [(4, 0)])[0]).mean()
    assert warp_error(source, still) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("amount", [1, 10, 100])
def test_flicker_is_measured_in_grey_levels(amount: int) -> None:
    source = panned(texture(), [(0, 0)] * 4)
    edited = np.full_like(source, 100)
    edited[1::2] += np.uint8(amount)
    assert warp_error(source, edited) == pytest.approx(amount, abs=1e-3)


def test_what_comes_into_view_does_not_count() -> None:
    source = panned(texture(), [(0, 0), (10, 0)])
    edited = source.copy()
    edited[1, :, -9:] = 0
    assert warp_error(source, edited) < 1


def test_real_clip() -> None:
    source = read_video(DOG, size=(128, 128))[:5]
    flicker = source.copy()
    flicker[1::2] = (flicker[1::2] * 0.8).astype(np.uint8)
    same, worse = warp_error(source, source), warp_error(source, flicker)
    unmoved = np.abs(np.diff(source.astype(float), axis=0)).mean()
    print(f"warp error {same:.2f}, with flicker {worse:.2f}; difference without motion {unmoved:.2f}")
    assert same < unmoved
    assert worse > same + 5


def test_wrong_clips() -> None:
    clip = np.zeros((2, 16, 16, 3), np.uint8)
    for source, edited, message in [
        (clip, clip.astype(np.float32), "edited: expected uint8"),
        (clip[0], clip, "source: expected uint8"),
        (clip[:1], clip[:1], "source: expected at least 2 frames"),
        (clip, np.zeros((3, 16, 16, 3), np.uint8), "edited: expected the shape of source"),
    ]:
        with pytest.raises(UsageError, match=message):
            warp_error(source, edited)


def still(levels) -> np.ndarray:
    """Frames of one grey level each."""
    return np.broadcast_to(np.array(levels, np.uint8)[:, None, None, None], (len(levels), 32, 32, 3))


def test_a_true_error_of_one_reads_one() -> None:
    """Differences of uint8 without a cast read 128 here."""
    source = np.stack([texture(size=64).clip(10, 240).astype(np.uint8)] * 6)
    alternating = source + (np.arange(6) % 2).astype(np.uint8)[:, None, None, None]
    assert warp_error(source, alternating) == pytest.approx(1.0)
    assert warp_error(source, source) == 0


def test_similarity_of_consecutive_frames_has_known_ends() -> None:
    frame = texture(size=64).clip(0, 255).astype(np.uint8)
    assert frame_similarity(np.stack([frame, frame, frame])) == pytest.approx(100)
    assert frame_similarity(np.stack([frame, 255 - frame])) == pytest.approx(-100, abs=0.5)
    noise = np.random.default_rng(0).integers(0, 256, (40, 64, 64, 3), dtype=np.uint8)
    assert abs(frame_similarity(noise)) < 5
    assert frame_similarity(still([0, 0, 0])) == 100
    brighter = np.stack([frame // 2, frame // 2 + 60])
    assert frame_similarity(brighter) > 99, "brightness alone does not count"


def test_similarity_takes_features_from_elsewhere() -> None:
    axes = torch.eye(3)[None]

    def channel(frame: torch.Tensor) -> torch.Tensor:
        return axes[:, int(frame.mean((0, 2, 3)).argmax())]

    colours = np.zeros((4, 16, 16, 3), np.uint8)
    for index, which in enumerate((0, 0, 1, 1)):
        colours[index, ..., which] = 255
    assert frame_similarity(colours, channel) == pytest.approx(200 / 3)


def test_flicker_reads_what_alternates_and_not_what_rises() -> None:
    assert flicker(still([100, 110] * 6)) == pytest.approx(10, abs=1e-3)
    assert flicker(still(range(0, 120, 10))) == pytest.approx(0, abs=1e-3)
    assert flicker(still([7] * 5)) == 0


def test_drift_is_the_slope_of_colour_and_contrast() -> None:
    """Two levels of red a second; contrast that doubles within a minute."""
    frames = np.zeros((61, 32, 32, 3), np.uint8)
    frames[..., 0] = (2 * np.arange(61))[:, None, None]
    assert drift(frames, 1.0).colour == pytest.approx(120, rel=0.01)
    pattern = (
        np.where(np.arange(32) % 2, 1, -1)[None, None, :, None]
        * (40 + 40 * np.arange(61) / 60)[:, None, None, None]
    )
    wider = np.broadcast_to(128 + pattern, (61, 32, 32, 3)).round().astype(np.uint8)
    measured = drift(wider, 1.0)
    assert measured.colour < 1
    assert measured.contrast == pytest.approx(100 * 40 / 60, rel=0.02)
    assert drift(still([9, 9, 9]), 16) == pytest.approx((0.0, 0.0), abs=1e-9)


def test_wrong_arguments_of_the_measures() -> None:
    with pytest.raises(UsageError, match="expected at least 3 frames"):
        flicker(still([1, 2]))
    with pytest.raises(UsageError, match="fps"):
        drift(still([1, 2]), 0)
    with pytest.raises(UsageError, match="uint8"):
        frame_similarity(still([1, 2]).astype(np.float32))  # type: ignore[arg-type]
