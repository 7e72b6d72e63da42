"""What a session asks of the place where its rounds run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.models.dit import TextContext
from wavecore.rounds import Key, NoiseLevel, Round, Rules


class RoundPlacement(Protocol):
    """Runs the rounds of one stream, and keeps the keys and values that they write.

    Attributes
    ----------
    probe : int or None
        Layer after which the mean hidden state of every slot is kept.
    embeddings : dict of stage to Tensor [D]
        These, of the round collected last.
    """

    probe: int | None
    embeddings: dict[int, Tensor]

    @property
    def depth(self) -> int:
        """Rounds in flight: how many are submitted before the first of them is collected."""

    def encode_text(self, features: Tensor, /) -> TextContext:
        """Condition of text features [1, l, text_dim], as `submit` takes it."""

    def submit(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> None:
        """Begin a round; parameters as for `wavecore.placement.LocalPlacement.run`."""

    def collect(self) -> dict[int, Tensor]:
        """Wait for the oldest round submitted.

        Returns
        -------
        dict of stage to Tensor [c, f, h, w]
            Clean estimate of each denoising slot.
        """

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget keys and values that no further round reads, beside what rounds release themselves."""

    def close(self) -> None:
        """Give up what the stream holds."""


class Place(Protocol):
    """Where streams can run."""

    def open(self, rules: Rules, pages: PoolSize, height: int, width: int) -> RoundPlacement:
        """Take in a stream.

        Parameters
        ----------
        rules : Rules
            Of its rounds.
        pages : PoolSize
            Pages that it holds at most.
        height, width : int
            Of a latent frame.
        """
