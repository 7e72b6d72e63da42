"""Adaptive sinks: which chunks of a stream stay in its context for good.

One decision a chunk (StreamDiffusionV2, "adaptive sink"): a finished chunk takes the place of the sink that
is least like it, when even that is less alike than a threshold. Pure: embeddings are plain vectors.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wavecore.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

SinkMode = Literal["adaptive", "static", "off"]


@dataclass(frozen=True)
class SinkChange:
    """A chunk became a sink.

    Attributes
    ----------
    slot : int
        Place in the set.
    chunk : int
        The new sink.
    replaced : int or None
        The sink that it replaced; None when the slot was empty.
    similarity : float or None
        Cosine of the two; None when the slot was empty.
    """

    slot: int
    chunk: int
    replaced: int | None = None
    similarity: float | None = None


class SinkSet:
    """The sinks of one stream.

    Parameters
    ----------
    slots : int
        Chunks that it holds.
    threshold : float
        tau: a sink whose cosine with a new chunk is below it may be replaced. -1 never replaces one.

    Attributes
    ----------
    chunks : list of int
        Present sinks, by slot.
    """

    def __init__(self, slots: int, threshold: float = 0.2) -> None:
        if slots < 0:
            raise UsageError(f"slots: expected at least 0, got {slots}")
        if not -1 <= threshold <= 1:
            raise UsageError(f"threshold: expected a cosine within [-1, 1], got {threshold}")
        self.slots = slots
        self.threshold = threshold
        self.chunks: list[int] = []
        self._vectors: list[NDArray[np.float64]] = []
        self._stale: set[int] = set()

    def refresh(self) -> None:
        """Let the next chunks offered take the place of every present sink, one each (a new prompt)."""
        self._stale = set(range(len(self.chunks)))

    def offer(self, chunk: int, embedding: Sequence[float] | NDArray[np.floating]) -> SinkChange | None:
        """Decide about a finished chunk; called once for each, in order.

        Slots that are still empty are filled and never compared; stale ones go before any threshold.

        Parameters
        ----------
        chunk : int
        embedding : sequence of float
            Mean hidden state of its tokens.

        Returns
        -------
        SinkChange or None
            None when the set stays as it is.
        """
        vector = np.asarray(embedding, np.float64)
        if len(self.chunks) < self.slots:
            self.chunks.append(chunk)
            self._vectors.append(vector)
            return SinkChange(len(self.chunks) - 1, chunk)
        open_slots = self._stale or range(len(self.chunks))
        if not open_slots:
            return None
        cosines = {slot: cosine(vector, self._vectors[slot]) for slot in sorted(open_slots)}
        slot = min(cosines, key=cosines.__getitem__)
        if not self._stale and not cosines[slot] < self.threshold:
            return None
        self._stale.discard(slot)
        replaced, self.chunks[slot], self._vectors[slot] = self.chunks[slot], chunk, vector
        return SinkChange(slot, chunk, replaced, cosines[slot])


def cosine(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    """Cosine of two vectors; two vectors of zeros are alike, one is unlike everything else."""
    lengths = float(np.linalg.norm(a)), float(np.linalg.norm(b))
    if not all(lengths):
        return 1.0 if lengths[0] == lengths[1] else 0.0
    value = float(a @ b) / (lengths[0] * lengths[1])
    if not math.isfinite(value):
        raise UsageError("embedding: expected finite numbers")
    return value
