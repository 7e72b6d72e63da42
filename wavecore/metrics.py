"""Measures of video with a known answer: against a source, from frame to frame, over time."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore.arguments import positive
from wavecore.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Clip = NDArray[np.uint8]

_GREY = (0.299, 0.587, 0.114)  # luma weights, ITU-R BT.601
_SMALLEST = 16  # pixels of the short side at the top of the pyramid
_ITERATIONS = 6
_WINDOW = 3.0  # standard deviation of the window that votes for a motion, in pixels
_NOISE = 1.0  # grey levels per pixel: gradients below this count as flat


def warp_error(source: Clip, edited: Clip) -> float:
    """Mean change of an edited video along the motion of its source, in grey levels.

    The motion between consecutive source frames is estimated; each edited frame is moved along it to the
    time of the next and compared with that. 0 means that the edit sticks to what moves. Pixels that the
    motion does not explain in both directions (occluded, uncovered, out of the picture) do not count.

    Parameters
    ----------
    source, edited : uint8 [f, h, w, 3]
        Of one shape, at least two frames of at least 16x16.

    Returns
    -------
    float
        Mean absolute difference over frames, pixels that count and channels, between 0 and 255; nan when no
        pixel counts.

    Notes
    -----
    The measure of Lai et al., "Learning Blind Video Temporal Consistency" (2018), as mean absolute difference
    and with `optical_flow`; numbers from another flow estimator are not comparable.
    """
    _check_clip("source", source)
    _check_edited(edited, source.shape)
    return SourceMotion(source).warp_error(edited)


class SourceMotion:
    """Motion of a source, estimated once for all videos that are measured along it.

    Parameters
    ----------
    source : uint8 [f, h, w, 3]
        At least two frames of at least 16x16.
    """

    @torch.inference_mode()
    def __init__(self, source: Clip) -> None:
        _check_clip("source", source)
        self._shape = source.shape
        self._steps: list[
            tuple[Tensor, Tensor]
        ] = []  # motion back from each frame, and the pixels that count
        for before, after in pairwise(source):
            first, second = _grey(before), _grey(after)
            back = optical_flow(second, first)
            self._steps.append((back, _agree(back, optical_flow(first, second))))

    @torch.inference_mode()
    def warp_error(self, edited: Clip) -> float:
        """As the function `warp_error`, of `edited` [f, h, w, 3] of the source's shape."""
        _check_edited(edited, self._shape)
        total = count = 0.0
        for (back, counts), (before, after) in zip(self._steps, pairwise(edited), strict=True):
            difference = (warp(_planes(before), back) - _planes(after)).abs().mean(1, keepdim=True)
            total += float((difference * counts).sum())
            count += float(counts.sum())
        return total / count if count else float("nan")


@torch.inference_mode()
def frame_similarity(video: Clip, features: Callable[[Tensor], Tensor] | None = None) -> float:
    """Mean similarity of consecutive frames, in percent: 100 times the cosine of their features.

    Parameters
    ----------
    video : uint8 [f, h, w, 3]
        At least two frames of at least 16x16.
    features : callable, optional
        Frames float [1, 3, h, w], 0 to 255, to features [1, d]; CLIP's image encoder gives the published
        measure. Left out: the picture itself at 16x16, less its mean, so that brightness alone does not
        count.

    Returns
    -------
    float
        100 for frames that are alike, 0 for unrelated ones, -100 for opposite ones.
    """
    _check_clip("video", video)
    describe = _thumbnail if features is None else features
    total, before = 0.0, describe(_planes(video[0]))
    for frame in video[1:]:
        after = describe(_planes(frame))
        lengths = float(before.norm()), float(after.norm())
        if all(lengths):
            total += float((before * after).sum()) / (lengths[0] * lengths[1])
        else:
            total += lengths[0] == lengths[1]
        before = after
    return 100 * total / (len(video) - 1)


@torch.inference_mode()
def flicker(video: Clip) -> float:
    """Brightness that comes and goes from frame to frame, in grey levels.

    Half the second difference over time of the mean brightness of 8x8 blocks: light that rises or falls
    evenly does not count, and one that alternates by d every frame reads d.

    Parameters
    ----------
    video : uint8 [f, h, w, 3]
        At least three frames of at least 16x16.
    """
    _check_clip("video", video, frames=3)
    blocks = [F.avg_pool2d(_grey(frame), 8) for frame in video[:2]]
    total = 0.0
    for frame in video[2:]:
        first, second = blocks
        third = F.avg_pool2d(_grey(frame), 8)
        total += float((first - 2 * second + third).abs().mean()) / 2
        blocks = [second, third]
    return total / (len(video) - 2)


class Drift(NamedTuple):
    """How a video changes over time, by the straight line through its frames.

    Attributes
    ----------
    colour : float
        Change of the mean colour in grey levels a minute: the length of the change in RGB.
    contrast : float
        Change of the standard deviation of the grey picture, in percent of its mean a minute.
    """

    colour: float
    contrast: float


@torch.inference_mode()
def drift(video: Clip, fps: float) -> Drift:
    """Slow change of colour and contrast.

    Parameters
    ----------
    video : uint8 [f, h, w, 3]
        At least two frames of at least 16x16.
    fps : float
        Frames a second.
    """
    _check_clip("video", video)
    positive("fps", fps)
    colours = np.stack([frame.reshape(-1, 3).mean(0) for frame in video])
    contrasts = np.array([float(_grey(frame).std(correction=0)) for frame in video])
    minutes = np.arange(len(video)) / fps / 60
    slope = np.polynomial.polynomial.polyfit(minutes, np.column_stack((colours, contrasts)), 1)[1]
    level = contrasts.mean()
    return Drift(float(np.linalg.norm(slope[:3])), float(100 * slope[3] / level) if level else 0.0)


def optical_flow(first: Tensor, second: Tensor) -> Tensor:
    """Estimate where each pixel of `first` is in `second`: iterative Lucas-Kanade on a pyramid.

    Parameters
    ----------
    first, second : Tensor float [1, 1, h, w]
        Grey levels, 0 to 255.

    Returns
    -------
    Tensor float [1, 2, h, w]
        Displacement in pixels: along the width, then along the height.

    Notes
    -----
    Bouguet, "Pyramidal Implementation of the Lucas Kanade Feature Tracker" (2001), for every pixel and with a
    Gaussian window; flat places take the motion of the coarser level.
    """
    pyramid = [(first, second)]
    while min(pyramid[-1][0].shape[2:]) >= 2 * _SMALLEST:
        pyramid.append(tuple(F.avg_pool2d(image, 2) for image in pyramid[-1]))  # type: ignore[arg-type]
    flow = first.new_zeros(1, 2, *pyramid[-1][0].shape[2:])
    for a, b in reversed(pyramid):
        if flow.shape[2:] != a.shape[2:]:
            scale = flow.new_tensor([a.shape[3] / flow.shape[3], a.shape[2] / flow.shape[2]])
            flow = F.interpolate(flow, size=a.shape[2:], mode="bilinear", align_corners=False)
            flow = flow * scale[None, :, None, None]
        for _ in range(_ITERATIONS):
            flow = flow + _step(a, warp(b, flow), _inside(flow))
    return flow


def warp(image: Tensor, flow: Tensor) -> Tensor:
    """Sample `image` [1, c, h, w] where `flow` [1, 2, h, w] leads; bilinear, edges repeated."""
    height, width = image.shape[2:]
    y, x = _pixel_grid(flow)
    grid = torch.stack(((x + flow[:, 0]) * 2 + 1, (y + flow[:, 1]) * 2 + 1), -1)
    grid = grid / grid.new_tensor([width, height]) - 1
    return F.grid_sample(image, grid, padding_mode="border", align_corners=False)


def _step(first: Tensor, second: Tensor, counts: Tensor) -> Tensor:
    """One Lucas-Kanade update: the motion that best explains the change in a window, by least squares.

    Only pixels in `counts` [1, 1, h, w] vote: those without a counterpart would drag the edge along.
    """
    mean = (first + second) / 2
    padded = F.pad(mean, (1, 1, 1, 1), mode="replicate")
    dx = (padded[..., 1:-1, 2:] - padded[..., 1:-1, :-2]) / 2
    dy = (padded[..., 2:, 1:-1] - padded[..., :-2, 1:-1]) / 2
    dt = second - first
    products = torch.cat((dx * dx, dx * dy, dy * dy, dx * dt, dy * dt), 1) * counts
    xx, xy, yy, xt, yt = _blur(products).unbind(1)
    xx, yy = xx + _NOISE, yy + _NOISE
    determinant = xx * yy - xy * xy
    step = torch.stack((xy * yt - yy * xt, xy * xt - xx * yt), 1) / determinant[:, None]
    return step.clamp(-1, 1)


def _blur(planes: Tensor) -> Tensor:
    radius = round(2 * _WINDOW)
    offsets = torch.arange(-radius, radius + 1, dtype=planes.dtype)
    weights = torch.exp(-((offsets / _WINDOW) ** 2) / 2)
    weights = weights / weights.sum()
    channels = planes.shape[1]
    padded = F.pad(planes, (radius, radius, radius, radius), mode="replicate")
    across = F.conv2d(padded, weights.expand(channels, 1, 1, -1), groups=channels)
    return F.conv2d(across, weights[:, None].expand(channels, 1, -1, 1), groups=channels)


def _inside(flow: Tensor) -> Tensor:
    """Pixels [1, 1, h, w] whose motion leads inside the picture."""
    height, width = flow.shape[2:]
    y, x = _pixel_grid(flow)
    x, y = x + flow[:, 0], y + flow[:, 1]
    return ((x >= 0) & (x <= width - 1) & (y >= 0) & (y <= height - 1)).to(flow)[:, None]


def _agree(flow: Tensor, opposite: Tensor) -> Tensor:
    """Pixels [1, 1, h, w] whose motion leads inside the picture and back to them.

    The bound is that of Sundaram et al., "Dense Point Trajectories by GPU-accelerated Large Displacement
    Optical Flow" (2010).
    """
    returned = warp(opposite, flow)
    gap = (flow + returned).square().sum(1)
    bound = 0.01 * (flow.square().sum(1) + returned.square().sum(1)) + 0.5
    return _inside(flow) * (gap < bound).to(flow)[:, None]


def _pixel_grid(flow: Tensor) -> tuple[Tensor, Tensor]:
    height, width = flow.shape[2:]
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return y.to(flow), x.to(flow)


def _planes(frame: Clip) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(frame)).permute(2, 0, 1).float()[None]


def _grey(frame: Clip) -> Tensor:
    return (_planes(frame) * torch.tensor(_GREY)[None, :, None, None]).sum(1, keepdim=True)


def _thumbnail(frame: Tensor) -> Tensor:
    small = F.adaptive_avg_pool2d(frame, _SMALLEST)
    return (small - small.mean()).flatten(1)


def _check_clip(name: str, clip: Clip, frames: int = 2) -> None:
    if clip.dtype != np.uint8 or clip.ndim != 4 or clip.shape[3] != 3:
        raise UsageError(f"{name}: expected uint8 [f, h, w, 3], got {clip.dtype} {list(clip.shape)}")
    if len(clip) < frames or min(clip.shape[1:3]) < _SMALLEST:
        raise UsageError(f"{name}: expected at least {frames} frames of 16x16, got {list(clip.shape)}")


def _check_edited(edited: Clip, shape: tuple[int, ...]) -> None:
    _check_clip("edited", edited)
    if edited.shape != shape:
        raise UsageError(f"edited: expected the shape of source {list(shape)}, got {list(edited.shape)}")
