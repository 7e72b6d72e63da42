"""One process of a ring, whichever place it has."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from itertools import pairwise

from torch import Tensor

from wavecore.errors import WavecoreError
from wavecore.models.dit import SlotState
from wavecore.placement.layers.channel import Channel
from wavecore.placement.layers.messages import Layer, Work
from wavecore.placement.layers.shard import Shard

_LAYERS = 1  # the lane of layers that change hands: results may still be on their way on the other


class Rank:
    """A shard at its place in the ring, which changes layers with other ranks between micro-steps.

    Parameters
    ----------
    channel : Channel
    shard : Shard
    ends : sequence of int [ranks]
        End of each rank's range of layers.

    Attributes
    ----------
    bytes_moved : int
        Sent for layers that changed hands.
    device : threading.Lock
        Held while the layers run.
    """

    def __init__(self, channel: Channel, shard: Shard, ends: Sequence[int]) -> None:
        self.channel, self.shard = channel, shard
        self.ends = tuple(ends)
        self.bytes_moved = 0
        self.device = threading.Lock()
        self._exchanging = False

    def run(self, work: Work, states: Sequence[SlotState], texts: Sequence[Tensor]) -> list[Tensor]:
        """Do this rank's part of a round; returns the mean hidden states that it was asked for."""
        with self.device:
            work.began.append(time.perf_counter())
            seconds, means = self.shard.run(work, states, texts)
        work.seconds.append(seconds)
        return means

    def after(self, work: Work) -> None:
        """Change layers, if the round that was handed on asks for it, before the next one."""
        if work.split:
            self.exchange(work.split)

    def exchange(self, ends: Sequence[int]) -> None:
        """Bring the split from the present one to `ends`; every rank does so after the same micro-step.

        A layer and its pages go from the old owner to the new one and to nobody else. Layers that leave at
        the front of a range go in rising order, those at its end in falling order, so that every range stays
        contiguous on both sides.
        """
        self._exchanging = True
        me = self.channel.rank
        moves = changes(self.ends, ends)
        for layer, source, target in moves:
            if source == me:
                self.bytes_moved += self.channel.send(target, *self.shard.give(layer), lane=_LAYERS)
        kept = self.shard.first
        arriving = [(layer, source) for layer, source, target in moves if target == me]
        below = sorted((move for move in arriving if move[0] < kept), reverse=True)
        for layer, source in below + sorted(move for move in arriving if move[0] >= kept):
            message, tensors, body = self.channel.receive(source, lane=_LAYERS)
            if not isinstance(message, Layer) or message.index != layer:
                raise WavecoreError(f"rank {me}: expected layer {layer} from rank {source}, got {message}")
            self.shard.take(message, tensors)
            self.channel.done(body)
        self.ends = tuple(ends)
        self._exchanging = False

    @property
    def whole(self) -> bool:
        """Whether no other rank waits for the rest of what this one tells it; see `Channel`."""
        return self.channel.whole and not self._exchanging


def changes(before: Sequence[int], after: Sequence[int]) -> list[tuple[int, int, int]]:
    """(layer, old rank, new rank) of each layer that changes hands, in an order in which it can be sent."""
    old, new = owners(before), owners(after)
    moved = [(layer, old[layer], new[layer]) for layer in range(len(old)) if old[layer] != new[layer]]
    down = [move for move in moved if move[2] < move[1]]
    return down + [move for move in moved if move[2] > move[1]][::-1]


def owners(ends: Sequence[int]) -> list[int]:
    """Rank of each layer."""
    return [rank for rank, (first, end) in enumerate(pairwise((0, *ends))) for _ in range(first, end)]
