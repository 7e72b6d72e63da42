"""Frames of a video as the chunks of latents that restyling begins with, and pixels to and from frames."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from wavecore.control.streaming import pixel_differences
from wavecore.errors import InputError
from wavecore.transfer import upload

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wavecore.models.stream import StreamingVAE
    from wavecore.placement.layers import RingVAE


class ChunkSource:
    """Encodes frames a chunk at a time: one frame for the first latent, then `temporal_factor` each.

    The last latent is filled up by repeating the last frame, the last chunk by repeating the last
    latent; `frames_left` counts only real frames, so what was filled up is never shown.

    Parameters
    ----------
    frames : iterator of uint8 [h, w, 3]
        Arrays or RGB images; may be endless.
    vae : StreamingVAE or RingVAE
        Encodes them.
    size : (width, height)
        That every frame must have.
    device : torch.device
        Of the VAE.
    measure : bool
        Measure how much changes from frame to frame.
    ahead : bool
        Read the next frames, and have them encoded, while those before them are at work: for an encoder
        elsewhere and a source that need not be waited for. Not together with `measure`.

    Attributes
    ----------
    pixel_differences : list of float
        Of the frames read since the last chunk was taken; see `wavecore.control.streaming.pixel_differences`.
    """

    def __init__(
        self,
        frames: Iterator[NDArray[np.uint8]],
        vae: StreamingVAE | RingVAE,
        size: tuple[int, int],
        device: torch.device | str = "cpu",
        measure: bool = False,
        ahead: bool = False,
    ) -> None:
        self.pixel_differences: list[float] = []
        self._measure = measure
        self._ahead = ahead and not measure
        self._encoding: deque[Callable[[], Tensor | None]] = deque()  # each waits for latents
        self._before: NDArray[np.uint8] | None = None
        self._frames = frames
        self._encoder: Any = vae.stream_encoder()  # with `begin` where it is elsewhere
        self._stride = vae.temporal_factor
        self._size = size
        self._device = device
        self._taken = 0
        self._over = False
        self._latents: list[Tensor] = []  # [1, c, h, w] each
        self._wanted = 0

    @property
    def ready(self) -> bool:
        """Whether a chunk is at hand."""
        return self._wanted > 0

    @torch.inference_mode()
    def prepare(self, latents: int) -> bool:
        """Read and encode a chunk of `latents` latents; False when the source is over.

        Raises
        ------
        InputError
            A frame has another size or type.
        """
        while len(self._latents) < latents and (self._encoding or not self._over):
            while not self._over and len(self._encoding) < (2 if self._ahead else 1):
                self._encoding.append(self._encode_next())
            encoded = self._encoding.popleft()()
            if encoded is not None:
                self._latents += encoded.unbind(2)
        self._wanted = latents if self._latents else 0
        return self.ready

    def take(self) -> Tensor:
        """The prepared chunk [c, f, h, w]."""
        chunk = self._latents[: self._wanted]
        self._latents = self._latents[self._wanted :]
        chunk += chunk[-1:] * (self._wanted - len(chunk))
        self._wanted = 0
        self.pixel_differences = []
        return torch.stack(chunk, 2)[0]

    def frames_left(self, emitted: int) -> int:
        """Frames read and not yet given out."""
        return self._taken - emitted

    def _encode_next(self) -> Callable[[], Tensor | None]:
        """Begin to encode the next frames; an encoder may hold some of their latents back."""
        wanted = self._stride if self._taken else 1
        frames: list[NDArray[np.uint8]] = []
        while len(frames) < wanted and not self._over:
            frame = next(self._frames, None)
            if frame is None:
                self._over = True
            else:
                frames.append(self._checked(np.asarray(frame)))
        self._taken += len(frames)
        pieces: list[Callable[[], Tensor]] = []
        if frames:
            if self._measure:
                self.pixel_differences += pixel_differences(frames, self._before)
                self._before = frames[-1]
            frames += frames[-1:] * (wanted - len(frames))
            pixels = upload(to_pixels(np.stack(frames)), self._device)
            pieces.append(self._encoder.begin(pixels) if self._ahead else _there(self._encoder(pixels)))
        if self._over:
            rest = self._encoder.flush()
            pieces += [] if rest is None else [_there(rest)]
        return lambda: torch.cat([piece() for piece in pieces], 2) if pieces else None

    def _checked(self, frame: NDArray[np.uint8]) -> NDArray[np.uint8]:
        width, height = self._size
        if frame.shape != (height, width, 3) or frame.dtype != np.uint8:
            raise InputError(
                f"source: expected frames uint8 [{height}, {width}, 3], got {frame.dtype} {list(frame.shape)}"
            )
        return frame


def _there(latents: Tensor) -> Callable[[], Tensor]:
    """Latents that need no waiting for."""
    return lambda: latents


def to_pixels(frames: NDArray[np.uint8]) -> Tensor:
    """Frames uint8 [f, h, w, 3] to float [1, 3, f, h, w] in [-1, 1]."""
    return (torch.from_numpy(frames).permute(3, 0, 1, 2).float() / 127.5 - 1)[None]


def to_uint8(pixels: Tensor) -> NDArray[np.uint8]:
    """Pixels [3, f, h, w] in [-1, 1] to frames uint8 [f, h, w, 3]."""
    scaled = pixels.float().clamp(-1, 1).add(1).mul(127.5).round().to(torch.uint8)
    return scaled.permute(1, 2, 3, 0).contiguous().cpu().numpy()
