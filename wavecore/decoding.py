"""Latents of a session on their way to frames: decoded here, or by processes beside it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from wavecore.models.stream import StreamingVAE
from wavecore.source import to_uint8
from wavecore.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.layers import RingVAE

_LATENTS_PER_WORKER = 6


@dataclass(frozen=True)
class GroupPlan:
    """What is known of a frame group before its frames are there.

    Attributes
    ----------
    index, version, pts
        As in `FrameGroup`.
    chunk : int
    latent : Tensor [c, h, w]
    frames : int
        How many of its frames count: fewer at the end of a stream.
    """

    index: int
    version: int
    pts: float
    chunk: int
    latent: Tensor
    frames: int


class Decoding(Protocol):
    """What a session asks of its decoder."""

    def put(self, plan: GroupPlan) -> None:
        """Give the next latent."""

    def take(self, wait: bool) -> tuple[GroupPlan, NDArray[np.uint8]] | None:
        """The oldest group whose frames are complete, waited for if told to; None when there is none."""

    @property
    def ready(self) -> bool:
        """Whether a group can be taken without a wait."""

    def close(self) -> None:
        """Give up what was not taken."""


class LocalDecoding:
    """Decodes at once, in the thread that gives the latent."""

    def __init__(self, vae: StreamingVAE, trace: Trace) -> None:
        self._decoder, self._trace = vae.stream_decoder(), trace
        self._done: deque[tuple[GroupPlan, NDArray[np.uint8]]] = deque()

    @torch.inference_mode()
    def put(self, plan: GroupPlan) -> None:
        """Decode a latent."""
        with self._trace.span("decode", chunk=plan.chunk, group=plan.index):
            frames = to_uint8(self._decoder(plan.latent[None, :, None])[0, :, : plan.frames])
        self._done.append((plan, frames))

    def take(self, wait: bool) -> tuple[GroupPlan, NDArray[np.uint8]] | None:
        """The oldest group."""
        return self._done.popleft() if self._done else None

    @property
    def ready(self) -> bool:
        """Whether a group is there."""
        return bool(self._done)

    def close(self) -> None:
        """Forget what was not taken."""
        self._done.clear()


class RemoteDecoder(Protocol):
    """Latents in, frames out in the same order, decoded by other processes."""

    def put(self, latent: Tensor) -> None:
        """Give the next latent [1, c, 1, h, w]."""

    def get(self) -> Tensor:
        """Wait for the frames [1, 3, n, h, w] in [-1, 1] of the oldest latent given."""

    @property
    def ready(self) -> bool:
        """Whether `get` would not wait."""

    def close(self) -> None:
        """Give up what was not taken."""


class WorkerDecoding:
    """Decodes in other processes, while the session goes on.

    Parameters
    ----------
    decoder : RemoteDecoder
        Such as processes of its own (`wavecore.placement.decode`) or a rank of a ring.
    workers : int
        Processes that work at a time.
    trace : Trace
    """

    def __init__(self, decoder: RemoteDecoder, workers: int, trace: Trace) -> None:
        self._trace, self._pipeline = trace, decoder
        self._most = _LATENTS_PER_WORKER * workers
        self._waiting: deque[tuple[GroupPlan, float]] = deque()
        self._done: deque[tuple[GroupPlan, NDArray[np.uint8]]] = deque()

    @torch.inference_mode()
    def put(self, plan: GroupPlan) -> None:
        """Send a latent to the first worker; waits while as many are under way as workers need to be busy."""
        while len(self._waiting) >= self._most:
            self._done.append(self._take())
        self._waiting.append((plan, self._trace.clock()))
        self._pipeline.put(plan.latent[None, :, None])

    @torch.inference_mode()
    def take(self, wait: bool) -> tuple[GroupPlan, NDArray[np.uint8]] | None:
        """The oldest group, once its frames are there."""
        if self._done:
            return self._done.popleft()
        return self._take() if self._waiting and (wait or self._pipeline.ready) else None

    def _take(self) -> tuple[GroupPlan, NDArray[np.uint8]]:
        frames = to_uint8(self._pipeline.get()[0])
        plan, given = self._waiting.popleft()
        taken = self._trace.clock() - given
        self._trace.record(
            "decode", time=given, duration=taken, track="decoders", chunk=plan.chunk, group=plan.index
        )
        return plan, frames[: plan.frames]

    @property
    def ready(self) -> bool:
        """Whether the frames of the oldest group are there."""
        return bool(self._done) or (bool(self._waiting) and self._pipeline.ready)

    def close(self) -> None:
        """End the workers."""
        self._done.clear()
        self._waiting.clear()
        self._pipeline.close()


def start_decoding(
    vae: StreamingVAE,
    trace: Trace,
    latent_size: tuple[int, int, int],
    decoders: DecodeOptions | None,
    codec: RingVAE | None,
    wake: Callable[[], None],
) -> Decoding:
    """Begin to decode: in processes of `decoders`, on the rank of a ring that `codec` says, or else here.

    Parameters
    ----------
    latent_size : (c, h, w)
    wake : callable ()
        Called from another thread when processes have frames.

    Raises
    ------
    UsageError
        Processes that do not fit the decoder.
    """
    if decoders is not None:
        from wavecore.placement.decode import start_decoders

        # Checked there: one that can be cut.
        pipeline = start_decoders(cast(Any, vae), latent_size, decoders, wake)
        return WorkerDecoding(pipeline, decoders.workers, trace)
    if codec is not None and (decoder := codec.remote_decoder()) is not None:
        return WorkerDecoding(decoder, 1, trace)
    return LocalDecoding(vae, trace)
