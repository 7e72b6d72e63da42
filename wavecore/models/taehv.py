"""TAEHV: a tiny video autoencoder for the latents of Wan 2.1, as a stream.

Numerically the public model (madebyollin/taehv, ``taew2_1``), with its checkpoint names. Every block sees
a frame and the one before it, so a carried state of one frame a block makes the work for a latent constant.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecore.errors import UsageError
from wavecore.models.stream import State, Stream, check_floating, run_stream, run_units
from wavecore.models.wan_vae_layers import convolve_frames

_FRAMES = 4  # frames of a latent
_SPATIAL = 8  # pixels of a latent's side


@dataclass(frozen=True)
class TAEHVConfig:
    """Sizes; the defaults are ``taew2_1``.

    Attributes
    ----------
    latent_channels : int
        Channels of a latent.
    encoder_width : int
        Channels everywhere inside the encoder.
    decoder_widths : tuple of 4 int
        Channels of the three levels of the decoder and of its end.
    """

    latent_channels: int = 16
    encoder_width: int = 64
    decoder_widths: tuple[int, int, int, int] = (256, 128, 64, 64)


class Apply(nn.Module):
    """A function of the frames, as a unit without parameters or state."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return self.function(x), ()


class FrameConv(nn.Conv2d):
    """3x3 convolution of each frame."""

    def __init__(self, in_channels: int, out_channels: int, stride: int = 1, bias: bool = True) -> None:
        super().__init__(in_channels, out_channels, 3, stride, padding=1, bias=bias)

    def forward(self, x: Tensor, state: State = ()) -> tuple[Tensor, State]:  # type: ignore[override]
        return convolve_frames(x, self.weight, self.bias, self.stride[0], padding=1), ()


class MemBlock(nn.Module):
    """Residual block over a frame and the one before it, which is the state; zeros at the start."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.ModuleDict(
            {
                "0": FrameConv(2 * channels, channels),
                "1": Apply(F.relu),
                "2": FrameConv(channels, channels),
                "3": Apply(F.relu),
                "4": FrameConv(channels, channels),
            }
        )

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        last = state[0] if state else torch.zeros_like(x[:, :1])
        before = torch.cat([last, x[:, :-1]], dim=1)
        y, _ = run_units(self.conv.values(), torch.cat([x, before], dim=-1), ())
        return F.relu(y + x), (x[:, -1:].clone(),)


class TPool(nn.Module):
    """Join every `stride` frames into one by a linear map of their channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels * stride, channels, 1, bias=False)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        joined = x.unflatten(1, (-1, self.stride)).movedim(2, -2).flatten(-2)
        return F.linear(joined, self.conv.weight.flatten(1)), ()


class TGrow(nn.Module):
    """Turn every frame into `stride` frames by a linear map of its channels."""

    def __init__(self, channels: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.conv = nn.Conv2d(channels, channels * stride, 1, bias=False)

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        grown = F.linear(x, self.conv.weight.flatten(1))
        return grown.unflatten(-1, (self.stride, -1)).movedim(-2, 2).flatten(1, 2), ()


class SkipFirst(nn.Module):
    """Leave out the first frames of a stream, which decode what was before its beginning."""

    def __init__(self, frames: int) -> None:
        super().__init__()
        self.frames = frames

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return (x if state else x[:, self.frames :]), (x.new_empty(0),)


def _soft_clamp(x: Tensor) -> Tensor:
    return torch.tanh(x / 3) * 3


def _double_size(x: Tensor) -> Tensor:
    return x.repeat_interleave(2, dim=2).repeat_interleave(2, dim=3)


class TAEHV(nn.Module):
    """Tiny autoencoder on the latents of Wan 2.1.

    Pixels are [b, 3, frames, height, width] in [-1, 1], latents [b, latent_channels, frames, h, w],
    normalised; both are taken in any dtype and given in that of the weights. A video has 1 + 4 k frames and
    1 + k latents.

    The encoder was trained to make a latent of Wan, whose newest frame is the first of four, from all four:
    it looks three frames ahead. A stream therefore gives a latent when those have come, and `Stream.flush`
    repeats the last frame in place of frames that will not come, as the public model does.

    Parameters
    ----------
    config : TAEHVConfig
        Sizes; the default is the public model.
    """

    def __init__(self, config: TAEHVConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or TAEHVConfig()
        self.temporal_factor: int = _FRAMES
        self.spatial_factor: int = _SPATIAL
        width = config.encoder_width
        encoder: list[nn.Module] = [FrameConv(3, width), Apply(F.relu)]
        for stride in (2, 2, 1):
            encoder += [TPool(width, stride), FrameConv(width, width, stride=2, bias=False)]
            encoder += [MemBlock(width) for _ in range(3)]
        self.encoder = nn.ModuleList([*encoder, FrameConv(width, config.latent_channels)])
        widths = config.decoder_widths
        decoder = [Apply(_soft_clamp), FrameConv(config.latent_channels, widths[0]), Apply(F.relu)]
        for level, stride in enumerate((1, 2, 2)):
            decoder += [MemBlock(widths[level]) for _ in range(3)]
            decoder += [Apply(_double_size), TGrow(widths[level], stride)]
            decoder += [FrameConv(widths[level], widths[level + 1], bias=False)]
        self.decoder = nn.ModuleList([*decoder, Apply(F.relu), FrameConv(widths[3], 3)])

    def encode_step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """Latents of the next frames of a stream.

        Parameters
        ----------
        frames : Tensor [b, 3, n, height, width]
            Any number of frames in [-1, 1].
        state : State
            What the previous call returned; () at the start.

        Returns
        -------
        Tensor [b, latent_channels, m, height / 8, width / 8], State
            The latents whose four frames are complete, m >= 0, and the state for the next call.

        Raises
        ------
        UsageError
            Another number of channels, a size that 8 does not divide, or bytes.
        """
        if (
            frames.dim() != 5
            or frames.shape[1] != 3
            or frames.shape[3] % _SPATIAL
            or frames.shape[4] % _SPATIAL
        ):
            raise UsageError(
                f"frames: expected [b, 3, n, multiple of {_SPATIAL}, multiple of {_SPATIAL}], "
                f"got {list(frames.shape)}"
            )
        check_floating("frames", frames)
        # In one layout, since rounding depends on it.
        x = frames.permute(0, 2, 3, 4, 1).to(self._dtype).contiguous()
        units: State = ()
        if state:
            held, units = state
            x = torch.cat([held, x], dim=1)
        groups = x.shape[1] // _FRAMES
        latents = [x.new_zeros(len(x), 0, x.shape[2] // _SPATIAL, x.shape[3] // _SPATIAL, self._channels)]
        # One group at a time, so that the result does not depend on how many frames come in a call.
        for group in x[:, : groups * _FRAMES].split(_FRAMES, dim=1)[:groups]:
            latent, units = run_units(self.encoder, (group + 1) / 2, units)
            latents.append(latent)
        held = x[:, groups * _FRAMES :].clone()
        return torch.cat(latents, dim=1).permute(0, 4, 1, 2, 3), (held, units)

    def decode_step(self, latent: Tensor, state: State) -> tuple[Tensor, State]:
        """Frames of the next latent of a stream.

        Parameters
        ----------
        latent : Tensor [b, latent_channels, 1, h, w]
            Normalised latent.
        state : State
            What the previous call returned; () at the start.

        Returns
        -------
        Tensor [b, 3, n, 8 * h, 8 * w], State
            Frames in [-1, 1], one when `state` is empty and four otherwise, and the next state.

        Raises
        ------
        UsageError
            Another number of latents or channels.
        """
        if latent.dim() != 5 or latent.shape[1:3] != (self._channels, 1):
            raise UsageError(
                f"latent: expected [b, {self._channels}, 1, height, width], got {list(latent.shape)}"
            )
        check_floating("latent", latent)
        x, after = run_units(self.decoder, self.decoder_input(latent), state)
        if not state:
            x = x[:, _FRAMES - 1 :]
        return self.decoder_output(x), after

    @property
    def decoder_units(self) -> list[nn.Module]:
        """See `wavecore.models.stream.UnitDecoder`."""
        return [*self.decoder, SkipFirst(_FRAMES - 1)]

    def decoder_input(self, latent: Tensor) -> Tensor:
        """Frames [b, 1, h, w, latent_channels] for the decoder."""
        return latent.permute(0, 2, 3, 4, 1).to(self._dtype)

    def decoder_output(self, x: Tensor) -> Tensor:
        """Frames [b, 3, n, 8 * h, 8 * w] in [-1, 1] of what the decoder gives."""
        return (x.clamp(0, 1) * 2 - 1).permute(0, 4, 1, 2, 3)

    @property
    def _channels(self) -> int:
        return self.config.latent_channels

    @property
    def _dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype

    def _finish(self, state: State) -> Tensor | None:
        held = state[0]
        if not held.shape[1]:
            return None
        tail = held[:, -1:].expand(-1, _FRAMES - held.shape[1], -1, -1, -1)
        return self.encode_step(tail.permute(0, 4, 1, 2, 3), state)[0]

    def encode(self, video: Tensor) -> Tensor:
        """Latents [b, latent_channels, 1 + k, h, w] of a video [b, 3, 1 + 4 * k, 8 * h, 8 * w].

        Raises
        ------
        UsageError
            A number of frames that is not 1 + 4 * k, or as `encode_step`.
        """
        if video.dim() != 5 or video.shape[2] % _FRAMES != 1:
            raise UsageError(f"video: expected [b, 3, 1 + 4 * k, height, width], got {list(video.shape)}")
        return run_stream(self.stream_encoder(), [video])

    def decode(self, latents: Tensor) -> Tensor:
        """Video [b, 3, 1 + 4 * k, 8 * h, 8 * w] of latents [b, latent_channels, 1 + k, h, w]."""
        if latents.dim() != 5 or not latents.shape[2]:
            raise UsageError(
                f"latents: expected [b, {self._channels}, 1 or more, height, width], "
                f"got {list(latents.shape)}"
            )
        return run_stream(self.stream_decoder(), latents.split(1, dim=2))

    def stream_encoder(self) -> Stream:
        """Encoder for any number of frames a call; `Stream.flush` gives the last latent."""
        return Stream(self.encode_step, self._finish)

    def stream_decoder(self) -> Stream:
        """Decoder for one latent a call: one frame, then four, four, ..."""
        return Stream(self.decode_step)
