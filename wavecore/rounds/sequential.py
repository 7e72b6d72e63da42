"""Self-Forcing rounds: one chunk after the other, one pass a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavecore.rounds.data import Key, Round
from wavecore.rounds.rules import Rounds, Rules, at_least


@dataclass(frozen=True, kw_only=True)
class Sequential(Rules):
    """`steps` denoising passes and a store pass per chunk; every pass reads clean chunks and itself.

    Parameters
    ----------
    history : int
        Clean chunks besides the anchor; 5, so that with anchor and itself a pass reads 7 chunks
        (the 21 latent frames of Self-Forcing).
    store_history : int
        The same for the store pass.
    """

    history: int = 5
    store_history: int = 5

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("history", self.history, 0)
        at_least("store_history", self.store_history, 0)

    @property
    def period(self) -> int:
        return self.steps + 1

    def rounds_held(self) -> int:
        return self.steps + 1

    def settled(self) -> int:
        first = 1  # beyond the history: it may be shorter than the others
        return self.anchor_chunks + max(self.history, self.store_history) + first + self.retain + 1

    def round(self, index: int, chunks: int | None = None) -> Round:
        chunk = self.entered(index + 1) - 1
        stage = index - self.entry(chunk)
        if chunk < 0 or stage > self.steps:  # the next chunk was delayed
            return Round(index, self.steps, (), phase="wait")
        store = stage == self.steps
        key = Key(chunk, stage)
        anchors, history = self._clean(chunk, self.store_history if store else self.history, self.steps)
        widest = max(self.history, self.store_history)
        return Round(
            index,
            self.steps,
            (self._slot(key, self._reads(anchors, [*history, key]), self.steps),),
            releases=self._release(key, widest) if store else (key,),
            completes=chunk if stage == self.steps - 1 else None,
            phase="store" if store else "denoise",
        )


def sequential(steps: int, chunks: int | None = None, **rules: Any) -> Rounds:
    """Rounds of Self-Forcing; `rules` are parameters of `Sequential`."""
    return Rounds(Sequential(steps=steps, **rules), chunks)
