"""What each chunk of a call follows: a prompt, or a mixture on the way from one to the next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from wavecore.control.speculative.conditions import Gradual
from wavecore.control.streaming import transition_share
from wavecore.models.dit import TextContext
from wavecore.rounds.calls import Piece

_KEPT = 8  # encoded conditions
_DEPTH = 4  # transitions begun on the way of others that are told apart


@dataclass(frozen=True)
class Mixture:
    """`share` of a prompt, the rest of what was followed before it."""

    origin: str | Mixture
    prompt: str
    share: float


Followed = str | Mixture


@dataclass(frozen=True)
class _Way:
    """A transition that has begun at a position."""

    prompt: Gradual
    first: int
    origin: Followed


class Conditions:
    """Gives the chunks of calls what they follow, and encodes it.

    Parameters
    ----------
    features : callable
        Encodes a prompt as text features [1, l, d].
    context : callable
        What the model attends to, of text features.
    chunk : int
        Latents of a chunk.
    """

    def __init__(
        self, features: Callable[[str], Tensor], context: Callable[[Tensor], TextContext], chunk: int
    ) -> None:
        self._features_of, self._context_of, self._chunk = features, context, chunk
        self._features: OrderedDict[str, Tensor] = OrderedDict()
        self._contexts: OrderedDict[Followed, TextContext] = OrderedDict()
        self._way: _Way | None = None

    def follow(self, prompt: str, pieces: Sequence[Piece], before: Followed | None) -> dict[int, Followed]:
        """What each chunk of a call follows, by its start.

        Parameters
        ----------
        prompt : str
            A `Gradual` one is gone over to from `before`; a call that goes on with it goes on where it was.
        pieces : sequence of Piece
        before : str or Mixture or None
            What the chunk before the call follows; None where there is none.
        """
        if not isinstance(prompt, Gradual) or before is None:
            self._way = None
            return dict.fromkeys((piece.start for piece in pieces), str(prompt))
        position = pieces[0].start
        if self._way is None or self._way.prompt is not prompt or position <= self._way.first:
            self._way = _Way(prompt, position, _cut(before, _DEPTH))
        way = self._way
        followed: dict[int, Followed] = {}
        for piece in pieces:
            share = transition_share((piece.start - way.first) // self._chunk, prompt.chunks)
            followed[piece.start] = str(prompt) if share == 1 else Mixture(way.origin, str(prompt), share)
        return followed

    @torch.inference_mode()
    def encode(self, followed: Followed) -> TextContext:
        """Encode what a chunk follows, or take it from what was encoded lately."""
        if followed not in self._contexts:
            self._contexts[followed] = self._context_of(self._mixed(followed))
            if len(self._contexts) > _KEPT:
                self._contexts.popitem(last=False)
        return self._contexts[followed]

    def _mixed(self, followed: Followed) -> Tensor:
        if isinstance(followed, Mixture):
            return self._mixed(followed.origin).lerp(self._mixed(followed.prompt), followed.share)
        if followed not in self._features:
            self._features[followed] = self._features_of(followed)
            if len(self._features) > _KEPT:
                self._features.popitem(last=False)
        return self._features[followed]


def _cut(followed: Followed, depth: int) -> Followed:
    """Forget what a mixture of mixtures came from beyond a depth."""
    if not isinstance(followed, Mixture):
        return followed
    if not depth:
        return followed.prompt
    return Mixture(_cut(followed.origin, depth - 1), followed.prompt, followed.share)
