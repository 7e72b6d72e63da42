"""What calls have made, by position of the stream: latents, frames, decoder snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from wavecore.interactive.conditions import Followed
from wavecore.models.stream import State, StreamingVAE
from wavecore.source import to_uint8

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True)
class Prediction:
    """One position.

    Attributes
    ----------
    latent : Tensor [c, h, w]
        Clean.
    frames : ndarray uint8 [n, h, w, 3]
        Read-only.
    after : State
        Decoder state from which the next position is decoded.
    prompt : str or Mixture
        Condition it follows.
    """

    latent: Tensor
    frames: NDArray[np.uint8]
    after: State
    prompt: Followed


class Predictions:
    """Predictions by position. Written by the thread that makes them, read by the one that plays them."""

    def __init__(self) -> None:
        self._entries: dict[int, Prediction] = {}

    def __getitem__(self, position: int) -> Prediction:
        return self._entries[position]

    def __setitem__(self, position: int, prediction: Prediction) -> None:
        self._entries[position] = prediction

    def __contains__(self, position: int) -> bool:
        return position in self._entries

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def before(self, position: int, count: int = 1) -> list[Prediction]:
        """The latest `count` predictions before `position`, in order; positions may have been left empty."""
        earlier = sorted(p for p in self._entries if p < position)
        return [self._entries[p] for p in earlier[-count:]]

    def cut(self, position: int) -> dict[int, Prediction]:
        """Take everything from `position` on out."""
        return {p: self._entries.pop(p) for p in list(self._entries) if p >= position}

    def drop(self, positions: Iterable[int]) -> None:
        """Forget positions."""
        for position in positions:
            del self._entries[position]

    def restore(self, taken: dict[int, Prediction]) -> None:
        """Put back what was taken out."""
        self._entries |= taken

    def forget(self, before: int, keep: int = 1) -> None:
        """Drop what lies before a position, except the last `keep` of it, from which calls may go on."""
        earlier = sorted(p for p in self._entries if p < before)
        for position in earlier[:-keep]:
            del self._entries[position]


class Decoder:
    """Decodes latents to frames from any snapshot.

    Parameters
    ----------
    vae : StreamingVAE
    """

    def __init__(self, vae: StreamingVAE) -> None:
        self._stream = vae.stream_decoder()

    def decode(self, latent: Tensor, state: State, prompt: Followed) -> Prediction:
        """Frames of one latent [c, h, w], decoding on from `state`, which stays valid."""
        self._stream.restore(state)
        frames = to_uint8(self._stream(latent[None, :, None])[0])
        frames.flags.writeable = False
        return Prediction(latent, frames, self._stream.snapshot(), prompt)


class Made(NamedTuple):
    """Progress of a call: `parts` (see `wavecore.control.speculative.events`) of a position."""

    position: int
    parts: int


NOTHING_YET = Made(-1, 0)
"""A step of a call that made nothing readable; the call can be ended or spliced after it."""


class Generator(Protocol):
    """Makes the latents and frames of calls. All methods but reading `predictions` belong to one thread."""

    predictions: Predictions

    def call(self, position: int, groups: int, trimmed: int, prompt: str) -> Iterator[Made]:
        """Make groups [position, position + groups) behind what is there, reporting progress.

        What lies from `position` on must have been cut. Closing the iterator ends the call; what it has
        reported stays.
        """

    def splice(self, position: int, groups: int, prompt: str) -> bool:
        """Let a running call make [position, position + groups) under another prompt from now on.

        What is in flight before `position` goes on, everything from it on is dropped. Called between two
        steps of the call. False when that is not possible: calls are of one piece.
        """

    def cut(self, position: int) -> Any:
        """Take everything from `position` on out, so that it can be restored or discarded."""

    def restore(self, shelf: Any) -> None:
        """Put back what `cut` took out, in place of what was made there since."""

    def discard(self, shelf: Any) -> None:
        """Give up what `cut` took out."""

    def release(self, before: int) -> None:
        """Drop what no call from position `before` on needs."""

    def close(self) -> None:
        """Give up all memory."""


def inference(generator: Iterator[Made]) -> Iterator[Made]:
    """Run a call in inference mode, which a generator function cannot hold across its yields."""
    try:
        while True:
            with torch.inference_mode():
                made = next(generator, None)
            if made is None:
                return
            yield made
    finally:
        generator.close()  # type: ignore[attr-defined]
