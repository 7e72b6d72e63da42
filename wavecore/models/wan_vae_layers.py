"""Units of the Wan 2.1 VAE, each with its streaming state as an explicit value.

A unit maps frames [b, t, h, w, c] and its state to frames and its next state. Channels come last
because the norms reduce over them and because 2D convolutions are fastest in that layout.
Module names are those of the original checkpoint.
"""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecore.models.stream import State, run_units


def convolve_frames(
    x: Tensor, weight: Tensor, bias: Tensor | None, stride: int = 1, padding: int = 0
) -> Tensor:
    """2D convolution of every frame: [b, t, h, w, c] with weight [o, c, kh, kw]."""
    y = F.conv2d(x.flatten(0, 1).permute(0, 3, 1, 2), weight, bias, stride, padding)
    return y.permute(0, 2, 3, 1).unflatten(0, x.shape[:2])


def time_windows(frames: Tensor, stride: int = 1) -> Tensor:
    """Every three consecutive frames joined in channels: [b, t, h, w, c] to [b, n, h, w, 3 * c]."""
    last = frames.shape[1] - 2
    return torch.cat([frames[:, i : last + i : stride] for i in range(3)], dim=-1)


def convolve_space_time(frames: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """3x3x3 convolution, no padding in time: [b, t + 2, h, w, c] to [b, t, h, w, o]."""
    if frames.device.type == "cpu":
        # As a 2D convolution over joined frames: measured 1.5 to 10 times as fast as conv3d on CPU.
        return convolve_frames(time_windows(frames), weight.transpose(1, 2).flatten(1, 2), bias, padding=1)
    return F.conv3d(frames.permute(0, 4, 1, 2, 3), weight, bias, padding=(0, 1, 1)).permute(0, 2, 3, 4, 1)


class CausalConv(nn.Conv3d):
    """3x3x3 convolution over a frame and the two before it; the state is the last two input frames."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 3)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:  # type: ignore[override]
        past = state[0] if state else torch.zeros_like(x[:, :1]).expand(-1, 2, -1, -1, -1)
        frames = torch.cat([past, x], dim=1)
        return convolve_space_time(frames, self.weight, self.bias), (frames[:, -2:].clone(),)


def arrange_weights(model: nn.Module) -> None:
    """Lay convolution weights out in memory as the units of this module read them.

    Shapes and values stay. Without it every call reorders them, which takes most of the time of a wide
    model on a small picture (5.8 against 1.1 s for a latent of 4 x 4 at full width on one CPU core).
    """
    for module in model.modules():
        if isinstance(module, CausalConv):
            weight = module.weight.data
            if weight.device.type == "cpu":  # to o, kh, kw, kt, c: joined frames, channels last
                module.weight.data = weight.permute(0, 3, 4, 2, 1).contiguous().permute(0, 4, 3, 1, 2)
            else:
                module.weight.data = weight.contiguous(memory_format=torch.channels_last_3d)
        elif isinstance(module, nn.Conv2d):
            module.weight.data = module.weight.data.contiguous(memory_format=torch.channels_last)


class PointConv(nn.Conv3d):
    """1x1x1 convolution: a linear map of the channels."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__(in_channels, out_channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.flatten(1), self.bias)


class RMSNorm(nn.Module):
    """Scale the channels of each pixel to unit root-mean-square, then by `gamma`."""

    def __init__(self, channels: int, spatial_dims: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(channels, *[1] * spatial_dims))

    def forward(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        # Wan divides by max(norm, 1e-12); an epsilon of (1e-12)^2 does the same for every value in use.
        return F.rms_norm(x, (x.shape[-1],), self.gamma.flatten(), eps=1e-24), ()


class SiLU(nn.Module):
    """x * sigmoid(x), as a unit."""

    def forward(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:
        return F.silu(x), ()


class ResidualBlock(nn.Module):
    """Norm, SiLU, causal convolution, twice, and a shortcut."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        # Numbers as in the checkpoint, where 5 is a dropout layer that is never active.
        self.residual = nn.ModuleDict(
            {
                "0": RMSNorm(in_channels, 3),
                "1": SiLU(),
                "2": CausalConv(in_channels, out_channels),
                "3": RMSNorm(out_channels, 3),
                "4": SiLU(),
                "6": CausalConv(out_channels, out_channels),
            }
        )
        self.shortcut = PointConv(in_channels, out_channels) if in_channels != out_channels else nn.Identity()

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        y, state = run_units(self.residual.values(), x, state)
        return y + self.shortcut(x), state


class AttentionBlock(nn.Module):
    """Single-head self-attention inside each frame; has no state."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = RMSNorm(channels, 2)
        self.to_qkv = nn.Conv2d(channels, 3 * channels, 1)
        self.proj = nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        normed, _ = self.norm(x)
        qkv = F.linear(normed.flatten(2, 3), self.to_qkv.weight.flatten(1), self.to_qkv.bias)
        q, k, v = qkv.chunk(3, dim=-1)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + F.linear(y, self.proj.weight.flatten(1), self.proj.bias).reshape(x.shape), ()


class Downsample(nn.Module):
    """Halve height and width, and time too if `temporal`; the state is the last frame before `time_conv`.

    The first frame of a stream has nothing before it and passes the temporal part unchanged.
    """

    def __init__(self, channels: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": nn.Conv2d(channels, channels, 3)})
        self.time_conv = nn.Conv3d(channels, channels, (3, 1, 1)) if temporal else None

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        conv = cast(nn.Conv2d, self.resample["1"])
        x = convolve_frames(F.pad(x, (0, 0, 0, 1, 0, 1)), conv.weight, conv.bias, stride=2)
        if self.time_conv is None:
            return x, ()
        last: State = (x[:, -1:].clone(),)
        if not state:
            return x, last
        windows = time_windows(torch.cat([state[0], x], dim=1), stride=2)
        return _linear_in_time(windows, self.time_conv), last


class Upsample(nn.Module):
    """Double height and width and halve the channels, and double time first if `temporal`.

    The state is the last two frames before `time_conv`. The first frame of a stream is not doubled and,
    as in the published model, not seen by the frames after it either: their past starts as zeros.
    """

    def __init__(self, channels: int, temporal: bool) -> None:
        super().__init__()
        self.resample = nn.ModuleDict({"1": nn.Conv2d(channels, channels // 2, 3)})
        self.time_conv = nn.Conv3d(channels, 2 * channels, (3, 1, 1)) if temporal else None

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        after: State = ()
        if self.time_conv is not None and not state:
            after = (torch.zeros_like(x[:, :1]).repeat(1, 2, 1, 1, 1),)
        elif self.time_conv is not None:
            frames = torch.cat([state[0], x], dim=1)
            after = (frames[:, -2:].clone(),)
            doubled = _linear_in_time(time_windows(frames), self.time_conv)
            x = doubled.unflatten(-1, (2, -1)).movedim(-2, 2).flatten(1, 2)
        conv = cast(nn.Conv2d, self.resample["1"])
        larger = F.interpolate(x.flatten(0, 1).permute(0, 3, 1, 2), scale_factor=2, mode="nearest")
        y = F.conv2d(larger, conv.weight, conv.bias, padding=1)
        return y.permute(0, 2, 3, 1).unflatten(0, x.shape[:2]), after


def _linear_in_time(windows: Tensor, conv: nn.Conv3d) -> Tensor:
    """3x1x1 convolution of joined frames [b, n, h, w, 3 * c]."""
    return F.linear(windows, conv.weight.flatten(2).transpose(1, 2).flatten(1), conv.bias)
