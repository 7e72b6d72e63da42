"""A stream: a pure step function and the state it carries from call to call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Protocol, TypeAlias

import torch
from torch import Tensor, nn

from wavecore.errors import UsageError

# Nested tuples of tensors; the empty tuple is the state before the first input. Steps never change a
# tensor of a state in place, so a state can be kept, shared and used again.
State: TypeAlias = tuple[Any, ...]
Step: TypeAlias = Callable[[Tensor, State], tuple[Tensor, State]]


class Stream:
    """Applies a step to one input after the other and carries the state.

    Parameters
    ----------
    step : callable (input, state) -> (output, state)
        Pure: leaves its arguments unchanged.
    finish : callable (state) -> output or None, optional
        For a step that holds inputs back: the output of those that it still holds.
    """

    def __init__(self, step: Step, finish: Callable[[State], Tensor | None] | None = None) -> None:
        self._step = step
        self._finish = finish
        self._state: State = ()

    def __call__(self, x: Tensor) -> Tensor:
        """Output of the next input."""
        output, self._state = self._step(x, self._state)
        return output

    def flush(self) -> Tensor | None:
        """End the input and start anew: the output of what is still held back, None if nothing is."""
        output = self._finish(self._state) if self._finish and self._state else None
        self._state = ()
        return output

    def snapshot(self) -> State:
        """The state after all inputs so far; stays valid whatever the stream does next."""
        return self._state

    def restore(self, state: State) -> None:
        """Continue from a snapshot, of this stream or of another one of the same model."""
        self._state = state


class StreamingVAE(Protocol):
    """What `WanVAE`, `TAEHV` and `SpritesVAE` have in common.

    Pixels are floating point [b, 3, frames, height, width] in [-1, 1], latents [b, c, frames, height, width],
    normalised. One latent is one frame at the start of a stream and `temporal_factor` frames after it.
    """

    temporal_factor: int
    spatial_factor: int

    def encode(self, video: Tensor) -> Tensor:
        """Latents of a whole video."""

    def decode(self, latents: Tensor) -> Tensor:
        """Video of all latents."""

    def stream_encoder(self) -> Stream:
        """Encoder for frames that arrive over time; `Stream.flush` after the last of them."""

    def stream_decoder(self) -> Stream:
        """Decoder for latents that arrive over time, one a call."""


class UnitDecoder(Protocol):
    """A stream decoder as units one behind the other, each (x, state) -> (x, state): where it can be cut."""

    @property
    def decoder_units(self) -> list[nn.Module]:
        """The units in order."""

    def decoder_input(self, latent: Tensor) -> Tensor:
        """What the first unit takes, of the next latent [b, c, 1, height, width] of a stream."""

    def decoder_output(self, x: Tensor) -> Tensor:
        """Frames [b, 3, n, height, width] in [-1, 1] of what the last unit gives."""


def check_floating(name: str, tensor: Tensor) -> None:
    """Refuse numbers that are not floating point: bytes of pixels would be taken for values in [-1, 1].

    Raises
    ------
    UsageError
    """
    if not tensor.is_floating_point():
        raise UsageError(f"{name}: expected floating point, got {tensor.dtype}")


def run_units(units: Iterable[nn.Module], x: Tensor, states: State) -> tuple[Tensor, State]:
    """Pass `x` through units that each map (x, state) to (x, state).

    Returns
    -------
    Tensor, State
        Output, and one state for each unit.
    """
    after = []
    for index, unit in enumerate(units):
        x, state = unit(x, states[index] if states else ())
        after.append(state)
    return x, tuple(after)


def run_stream(stream: Stream, inputs: Iterable[Tensor]) -> Tensor:
    """All outputs [b, c, f, h, w] of a stream, joined along the frames."""
    outputs = [stream(x) for x in inputs]
    last = stream.flush()
    return torch.cat(outputs if last is None else [*outputs, last], dim=2)
