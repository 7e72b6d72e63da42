"""What the chunks of a session follow: a prompt, or on the way to it a mixture with the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from wavecore.control.streaming import transition_share
from wavecore.models.dit import TextContext


@dataclass(frozen=True)
class Condition:
    """A prompt as the next chunk follows it.

    Attributes
    ----------
    version : int
        Number of the prompt in its session.
    text : str
    features : Tensor [1, l, text_dim]
    context : TextContext
    way : iterator of TextContext
        From the prompt before it, a chunk each; see `mixtures`.
    """

    version: int
    text: str
    features: Tensor
    context: TextContext
    way: Iterator[TextContext]

    def next(self) -> Condition:
        """What the next chunk follows."""
        return replace(self, context=next(self.way, self.context))


def mixtures(
    encode: Callable[[Tensor], TextContext], origin: Tensor, features: Tensor, chunks: int
) -> Iterator[TextContext]:
    """Encode the mixtures of a transition over `chunks`, each when its chunk enters; the last has none."""
    for index in range(chunks - 1):
        with torch.inference_mode():
            context = encode(origin.lerp(features, transition_share(index, chunks)))
        yield context
