"""Streaming Wan 2.1 video autoencoder.

Numerically equal to the public model, with the names of the original checkpoint. The streaming state
is a value: `WanVAE.encode_step` and `WanVAE.decode_step` take one and return the next, modules hold none.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from wavecore.errors import UsageError
from wavecore.models.stream import State, Stream, check_floating, run_stream, run_units
from wavecore.models.wan_vae_layers import (
    AttentionBlock,
    CausalConv,
    Downsample,
    PointConv,
    ResidualBlock,
    RMSNorm,
    SiLU,
    Upsample,
)

# Mean and standard deviation of the latent channels of Wan 2.1, `latents_mean` and `latents_std` of the
# published configuration.
WAN_LATENTS_MEAN = (
    -0.7571, -0.7089, -0.9113, 0.1075, -0.1745, 0.9653, -0.1517, 1.5508,
    0.4134, -0.0715, 0.5517, -0.3632, -0.1922, -0.9497, 0.2503, -0.2921,
)  # fmt: skip
WAN_LATENTS_STD = (
    2.8184, 1.4541, 2.3275, 2.6558, 1.2196, 1.7708, 2.6052, 2.0743,
    3.2687, 2.1526, 2.8652, 1.5579, 1.6382, 1.1253, 2.8251, 1.9160,
)  # fmt: skip


@dataclass(frozen=True)
class WanVAEConfig:
    """Sizes of a Wan VAE; the defaults are Wan 2.1.

    Attributes
    ----------
    base_dim : int
        Channels of the first level.
    z_dim : int
        Channels of a latent.
    dim_mult : tuple of int
        Channels of each level in units of `base_dim`; height and width halve between levels.
    num_res_blocks : int
        Residual blocks of a level of the encoder; the decoder has one more.
    temporal_downsample : tuple of bool
        For each step between two levels, whether time halves too.
    latents_mean, latents_std : tuple of float
        Of each latent channel; latents outside this model are normalised with them.
    """

    base_dim: int = 96
    z_dim: int = 16
    dim_mult: tuple[int, ...] = (1, 2, 4, 4)
    num_res_blocks: int = 2
    temporal_downsample: tuple[bool, ...] = (False, True, True)
    latents_mean: tuple[float, ...] = WAN_LATENTS_MEAN
    latents_std: tuple[float, ...] = WAN_LATENTS_STD

    def __post_init__(self) -> None:
        if len(self.temporal_downsample) != len(self.dim_mult) - 1:
            raise UsageError(
                f"temporal_downsample: expected {len(self.dim_mult) - 1} values, one less than dim_mult, "
                f"got {len(self.temporal_downsample)}"
            )
        for name in ("latents_mean", "latents_std"):
            if len(getattr(self, name)) != self.z_dim:
                raise UsageError(
                    f"{name}: expected {self.z_dim} values, one for each latent channel, "
                    f"got {len(getattr(self, name))}"
                )
        if min(self.latents_std) <= 0:
            raise UsageError(f"latents_std: expected positive values, got {min(self.latents_std)}")


class Encoder(nn.Module):
    """Frames to the mean and log-variance of latents, before the last 1x1x1 convolution."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        channels = [config.base_dim * m for m in (1, *config.dim_mult)]
        levels = len(config.dim_mult)
        self.conv1 = CausalConv(3, channels[0])
        downsamples: list[nn.Module] = []
        for level, (before, after) in enumerate(pairwise(channels)):
            for block in range(config.num_res_blocks):
                downsamples.append(ResidualBlock(after if block else before, after))
            if level < levels - 1:
                downsamples.append(Downsample(after, config.temporal_downsample[level]))
        self.downsamples = nn.ModuleList(downsamples)
        self.middle = _middle(channels[-1])
        self.head = _head(channels[-1], 2 * config.z_dim)

    @property
    def units(self) -> list[nn.Module]:
        """The pieces in order, each (frames, state) -> (frames, state)."""
        return [self.conv1, *self.downsamples, *self.middle, *self.head]

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return run_units(self.units, x, state)


class Decoder(nn.Module):
    """Latents, after the first 1x1x1 convolution, to frames."""

    def __init__(self, config: WanVAEConfig) -> None:
        super().__init__()
        channels = [config.base_dim * m for m in (config.dim_mult[-1], *reversed(config.dim_mult))]
        temporal = tuple(reversed(config.temporal_downsample))
        self.conv1 = CausalConv(config.z_dim, channels[0])
        self.middle = _middle(channels[0])
        upsamples: list[nn.Module] = []
        for level, (before, after) in enumerate(pairwise(channels)):
            if level:
                before //= 2  # the upsampling between two levels halves the channels
            for block in range(config.num_res_blocks + 1):
                upsamples.append(ResidualBlock(after if block else before, after))
            if level < len(temporal):
                upsamples.append(Upsample(after, temporal[level]))
        self.upsamples = nn.ModuleList(upsamples)
        self.head = _head(channels[-1], 3)

    @property
    def units(self) -> list[nn.Module]:
        """The pieces in order, each (frames, state) -> (frames, state): the places to cut a pipeline."""
        return [self.conv1, *self.middle, *self.upsamples, *self.head]

    def forward(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        return run_units(self.units, x, state)


def _middle(channels: int) -> nn.ModuleList:
    return nn.ModuleList(
        [ResidualBlock(channels, channels), AttentionBlock(channels), ResidualBlock(channels, channels)]
    )


def _head(in_channels: int, out_channels: int) -> nn.ModuleList:
    return nn.ModuleList([RMSNorm(in_channels, 3), SiLU(), CausalConv(in_channels, out_channels)])


class WanVAE(nn.Module):
    """Wan 2.1 video autoencoder; whole videos or a stream, with bitwise the same result.

    Pixels are [b, 3, frames, height, width] in [-1, 1]. Latents are [b, z_dim, frames, height, width],
    normalised by the channel means and standard deviations on encoding and de-normalised on decoding.
    Both are taken in any dtype and given in that of the weights.
    A video has ``1 + temporal_factor * k`` frames and ``1 + k`` latents.

    Parameters
    ----------
    config : WanVAEConfig
        Sizes; the default is Wan 2.1.
    """

    latents_mean: Tensor
    latents_std: Tensor

    def __init__(self, config: WanVAEConfig | None = None) -> None:
        super().__init__()
        self.config = config = config or WanVAEConfig()
        self.temporal_factor: int = 2 ** sum(config.temporal_downsample)
        self.spatial_factor: int = 2 ** (len(config.dim_mult) - 1)
        self.encoder = Encoder(config)
        self.conv1 = PointConv(2 * config.z_dim, 2 * config.z_dim)
        self.conv2 = PointConv(config.z_dim, config.z_dim)
        self.decoder = Decoder(config)
        # On a real device even while the module is built on "meta": no checkpoint fills these.
        mean, std = torch.tensor([config.latents_mean, config.latents_std], device="cpu")
        self.register_buffer("latents_mean", mean, persistent=False)
        self.register_buffer("latents_std", std, persistent=False)

    def encode_step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """One latent of the next frames of a stream.

        Parameters
        ----------
        frames : Tensor [b, 3, n, height, width]
            One frame when `state` is empty, `temporal_factor` frames otherwise; in [-1, 1].
        state : State
            What the previous call returned; () at the start.

        Returns
        -------
        Tensor [b, z_dim, 1, height / spatial_factor, width / spatial_factor], State
            Normalised latent, and the state for the next call.

        Raises
        ------
        UsageError
            Another number of frames or channels, or a size that `spatial_factor` does not divide.
        """
        expected = self.temporal_factor if state else 1
        self._check_pixels("frames", frames, str(expected), frames.dim() == 5 and frames.shape[2] == expected)
        x, state = self.encoder(frames.permute(0, 2, 3, 4, 1).to(self.latents_mean.dtype), state)
        mean = self.conv1(x)[..., : self.config.z_dim]
        return ((mean - self.latents_mean) / self.latents_std).permute(0, 4, 1, 2, 3), state

    def decode_step(self, latent: Tensor, state: State) -> tuple[Tensor, State]:
        """Frames of the next latent of a stream.

        Parameters
        ----------
        latent : Tensor [b, z_dim, 1, height, width]
            Normalised latent.
        state : State
            What the previous call returned; () at the start.

        Returns
        -------
        Tensor [b, 3, n, height * spatial_factor, width * spatial_factor], State
            Frames in [-1, 1], one when `state` is empty and `temporal_factor` otherwise, and the next state.

        Raises
        ------
        UsageError
            Another number of latents or channels.
        """
        if latent.dim() != 5 or latent.shape[1:3] != (self.config.z_dim, 1):
            raise UsageError(
                f"latent: expected [b, {self.config.z_dim}, 1, height, width], got {list(latent.shape)}"
            )
        check_floating("latent", latent)
        x, state = self.decoder(self.decoder_input(latent), state)
        return self.decoder_output(x), state

    @property
    def decoder_units(self) -> list[nn.Module]:
        """See `wavecore.models.stream.UnitDecoder`."""
        return self.decoder.units

    def decoder_input(self, latent: Tensor) -> Tensor:
        """What `decoder` takes, frames [b, t, h, w, z_dim], of normalised latents [b, z_dim, t, h, w]."""
        x = latent.permute(0, 2, 3, 4, 1).to(self.latents_mean.dtype) * self.latents_std + self.latents_mean
        return self.conv2(x)

    def decoder_output(self, x: Tensor) -> Tensor:
        """Frames [b, 3, t, h, w] in [-1, 1] of what `decoder` gives."""
        return x.clamp(-1, 1).permute(0, 4, 1, 2, 3)

    def encode(self, video: Tensor) -> Tensor:
        """Latents [b, z_dim, 1 + k, h, w] of a video [b, 3, 1 + temporal_factor * k, height, width].

        Raises
        ------
        UsageError
            A number of frames that is not 1 + temporal_factor * k, or as `encode_step`.
        """
        factor = self.temporal_factor
        whole = video.dim() == 5 and video.shape[2] >= 1 and (video.shape[2] - 1) % factor == 0
        self._check_pixels("video", video, f"1 + {factor} * k", whole)
        groups = video.split([1] + [factor] * ((video.shape[2] - 1) // factor), dim=2)
        return run_stream(self.stream_encoder(), groups)

    def decode(self, latents: Tensor) -> Tensor:
        """Video [b, 3, 1 + temporal_factor * k, height, width] of latents [b, z_dim, 1 + k, h, w]."""
        if latents.dim() != 5 or not latents.shape[2]:
            raise UsageError(
                f"latents: expected [b, {self.config.z_dim}, 1 or more, height, width], "
                f"got {list(latents.shape)}"
            )
        return run_stream(self.stream_decoder(), latents.split(1, dim=2))

    def _check_pixels(self, name: str, pixels: Tensor, frames: str, frames_fit: bool) -> None:
        factor = self.spatial_factor
        if not frames_fit or pixels.shape[1] != 3 or pixels.shape[3] % factor or pixels.shape[4] % factor:
            raise UsageError(
                f"{name}: expected [b, 3, {frames}, multiple of {factor}, multiple of {factor}], "
                f"got {list(pixels.shape)}"
            )
        check_floating(name, pixels)

    def stream_encoder(self) -> Stream:
        """Encoder for 1, then `temporal_factor`, `temporal_factor`, ... frames a call; one latent each."""
        return Stream(self.encode_step)

    def stream_decoder(self) -> Stream:
        """Decoder for one latent a call."""
        return Stream(self.decode_step)
