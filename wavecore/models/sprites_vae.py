"""VAE of the `sprites` model: a linear code of pixel blocks, decoded with a convolutional refinement.

Blocks of 4 frames x 8 x 8 pixels are projected to 16 channels by principal components, so
the latent is known, and its statistics fixed, before anything is trained. What the linear
code loses (edges of moving subjects) is put back by a small causal convolutional decoder.
Same convention as Wan: frames = 1 + 4 (latents - 1), pixels in [-1, 1], latents normalised.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecore.errors import UsageError
from wavecore.models.stream import State, Stream, check_floating, run_stream

BLOCK = 8  # pixels a side
STRIDE = 4  # frames a latent


class ResidualBlock(nn.Module):
    """Two convolutions around a skip."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(F.silu(self.first(F.silu(x))))


class SpritesVAE(nn.Module):
    """Causal video autoencoder with 8x spatial and 4x temporal stride.

    Parameters
    ----------
    channels : int
        Latent channels.
    width : int
        Channels of the refinement at latent resolution.
    blocks : int
        Its residual blocks.
    """

    temporal_factor = STRIDE
    spatial_factor = BLOCK

    def __init__(self, channels: int = 16, width: int = 96, blocks: int = 3) -> None:
        super().__init__()
        values = STRIDE * BLOCK * BLOCK * 3
        self.channels = channels
        self.encoder = nn.Linear(values, channels)
        self.decoder = nn.Linear(channels, values)
        fine = width // 2
        self.refine = nn.Sequential(
            nn.Conv2d(2 * channels, width, 3, padding=1),
            *(ResidualBlock(width) for _ in range(blocks)),
            nn.Conv2d(width, 4 * fine, 3, padding=1),
            nn.PixelShuffle(2),
            ResidualBlock(fine),
            nn.SiLU(),
            nn.Conv2d(fine, STRIDE * 3 * (BLOCK // 2) ** 2, 3, padding=1),
        )

    # -- blocks of pixels ----------------------------------------------------------------

    @staticmethod
    def fold(group: Tensor) -> Tensor:
        """Frames [b, 3, 4, h, w] to blocks [b, h / 8, w / 8, 768]."""
        b, c, f, h, w = group.shape
        x = group.reshape(b, c, f, h // BLOCK, BLOCK, w // BLOCK, BLOCK)
        return x.permute(0, 3, 5, 2, 4, 6, 1).reshape(b, h // BLOCK, w // BLOCK, f * BLOCK * BLOCK * c)

    @staticmethod
    def unfold(blocks: Tensor) -> Tensor:
        """Inverse of `fold`."""
        b, h, w, _ = blocks.shape
        x = blocks.reshape(b, h, w, STRIDE, BLOCK, BLOCK, 3)
        return x.permute(0, 6, 3, 1, 4, 2, 5).reshape(b, 3, STRIDE, h * BLOCK, w * BLOCK)

    def encode_group(self, group: Tensor) -> Tensor:
        """One latent [b, c, h / 8, w / 8] of 1 or 4 frames [b, 3, f, h, w]; 1 frame counts four times."""
        if group.shape[2] == 1:
            group = group.expand(-1, -1, STRIDE, -1, -1)
        return self.encoder(self.fold(group).to(self.encoder.weight.dtype)).permute(0, 3, 1, 2)

    def decode_group(self, latent: Tensor, previous: Tensor) -> Tensor:
        """Four frames [b, 3, 4, h, w] of one latent [b, c, h, w], given the latent before it."""
        linear = self.unfold(self.decoder(latent.permute(0, 2, 3, 1)))
        fine = self.refine(torch.cat([latent, previous], 1))
        detail = F.pixel_shuffle(fine, BLOCK // 2).unflatten(1, (3, STRIDE))
        return linear + detail

    # -- streams and whole clips ---------------------------------------------------------

    def encode_step(self, frames: Tensor, state: State) -> tuple[Tensor, State]:
        """Latent [b, c, 1, h / 8, w / 8] of the next 1 (first call) or 4 frames [b, 3, f, h, w]."""
        if frames.dim() != 5 or frames.shape[1] != 3:
            raise UsageError(f"frames: expected [b, 3, f, height, width], got {list(frames.shape)}")
        check_floating("frames", frames)
        expected = STRIDE if state else 1
        if frames.shape[2] != expected:
            raise UsageError(f"frames: expected {expected} in this call, got {frames.shape[2]}")
        if frames.shape[3] % BLOCK or frames.shape[4] % BLOCK:
            raise UsageError(
                f"frames: expected height and width in multiples of {BLOCK}, got {tuple(frames.shape[3:])}"
            )
        return self.encode_group(frames)[:, :, None], (frames[:, :, -1:],)

    @property
    def decoder_units(self) -> list[nn.Module]:
        """One unit: what is coded linearly goes around the refinement. See `stream.UnitDecoder`."""
        return [_WholeDecoder(self)]

    def decoder_input(self, latent: Tensor) -> Tensor:
        """The latent as it is."""
        return latent

    def decoder_output(self, x: Tensor) -> Tensor:
        """The frames as they are."""
        return x

    def decode_step(self, latent: Tensor, state: State) -> tuple[Tensor, State]:
        """Next 1 (first call) or 4 frames [b, 3, f, h, w] of one latent [b, c, 1, h / 8, w / 8]."""
        if latent.dim() != 5 or latent.shape[1:3] != (self.channels, 1):
            raise UsageError(
                f"latent: expected [b, {self.channels}, 1, height, width], got {list(latent.shape)}"
            )
        check_floating("latent", latent)
        current = latent[:, :, 0].to(self.decoder.weight.dtype)
        frames = self.decode_group(current, state[0] if state else torch.zeros_like(current))
        return frames if state else frames[:, :, -1:], (current,)

    def encode(self, video: Tensor) -> Tensor:
        """Latents [b, c, 1 + (f - 1) / 4, h / 8, w / 8] of video [b, 3, f, h, w] in [-1, 1]."""
        if video.dim() != 5 or video.shape[2] % STRIDE != 1:
            raise UsageError(f"video: expected [b, 3, 1 + 4 * k, height, width], got {list(video.shape)}")
        return run_stream(self.stream_encoder(), video.split([1] + [STRIDE] * (video.shape[2] // STRIDE), 2))

    def decode(self, latents: Tensor) -> Tensor:
        """Video [b, 3, 1 + 4 (n - 1), h, w] of latents [b, c, n, h / 8, w / 8]."""
        if latents.dim() != 5 or not latents.shape[2]:
            raise UsageError(
                f"latents: expected [b, {self.channels}, 1 or more, height, width], got {list(latents.shape)}"
            )
        return run_stream(self.stream_decoder(), latents.split(1, 2))

    def stream_encoder(self) -> Stream:
        """Encoder that takes 1, then 4, 4, ... frames."""
        return Stream(self.encode_step)

    def stream_decoder(self) -> Stream:
        """Decoder that takes one latent at a time and gives 1, then 4, 4, ... frames."""
        return Stream(self.decode_step)


class _WholeDecoder(nn.Module):
    """The decoder as one unit."""

    def __init__(self, vae: SpritesVAE) -> None:
        super().__init__()
        self.vae = vae

    def forward(self, latent: Tensor, state: State) -> tuple[Tensor, State]:
        return self.vae.decode_step(latent, state)
