"""A rank of a ring other than the first, as a process: `python -m wavecore.placement.layers.worker`.

The first rank starts it, or `torchrun` does; see `Ring`.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.models.dit import DiTConfig
from wavecore.placement.layers.channel import Channel, own_device
from wavecore.placement.layers.codec import CodecService
from wavecore.placement.layers.messages import Close, Layer, Message, Open, Ready, Stop, Work
from wavecore.placement.layers.rank import Rank
from wavecore.placement.layers.shard import Shard, batches
from wavecore.placement.layers.streams import Mark, own_stream


def serve(channel: Channel) -> None:
    """Receive weights, then take part in every round until the ring ends."""
    before, after = (channel.rank - 1) % channel.size, (channel.rank + 1) % channel.size
    rank, codec = _receive_weights(channel)
    last, coming = after == 0, Incoming(channel.beside(), before)
    while True:
        message, tensors, body = coming.take()
        if isinstance(message, Work):
            tensors = _work(rank, message, tensors, last)
            channel.send(after, message, tensors)
            coming.done(body)
            rank.after(message)
            continue
        if isinstance(message, Open):
            rank.shard.open(message)
        elif isinstance(message, Close):
            rank.shard.close(message.stream)
        channel.send(after, message)
        if isinstance(message, Stop):
            channel.flush()
            if codec is not None:
                codec.thread.join()
            return


_Received = tuple[Message, list[Tensor], Tensor | None]


class Incoming:
    """Receives the next messages of a rank while this one computes, so that no hop waits for its transfer.

    Parameters
    ----------
    channel : Channel
        Of the receiving thread.
    source : int
    """

    def __init__(self, channel: Channel, source: int) -> None:
        self._channel, self._source = channel, source
        self._arrived: queue.SimpleQueue[tuple[_Received, Mark] | RuntimeError] = queue.SimpleQueue()
        threading.Thread(target=self._receive, name="incoming", daemon=True).start()

    def _receive(self) -> None:
        message: Message | None = None
        with own_stream(self._channel.device):
            while not isinstance(message, Stop):
                try:
                    received = self._channel.receive(self._source)
                except RuntimeError as error:
                    self._arrived.put(error)
                    return
                message = received[0]
                self._arrived.put((received, Mark(self._channel.device)))

    def take(self) -> _Received:
        """Wait for the next message; as `Channel.receive`."""
        arrived = self._arrived.get()
        if isinstance(arrived, RuntimeError):
            raise arrived
        received, there = arrived
        there.wait()
        return received

    def done(self, body: Tensor | None) -> None:
        """Nothing reads a received body any more."""
        self._channel.done(body)


@torch.inference_mode()
def _work(rank: Rank, work: Work, tensors: list[Tensor], last: bool) -> list[Tensor]:
    """Run this rank's layers; returns what goes to the next rank."""
    shard, groups = rank.shard, batches(work.round.slots)
    texts_at = 3 * len(groups)
    means_at = texts_at + len(work.new_text)
    texts, means = tensors[texts_at:means_at], tensors[means_at:]
    states = [
        shard.state(work, slots, tensors[3 * index : 3 * index + 3]) for index, slots in enumerate(groups)
    ]
    means = [*means, *rank.run(work, states, texts)]
    if last:
        return [*(shard.dit.finish(state) for state in states), *means]
    parts = chain.from_iterable((state.hidden, state.modulation, state.time) for state in states)
    return [*parts, *texts, *means]


def _receive_weights(channel: Channel) -> tuple[Rank, CodecService | None]:
    """Layers one by one from the first rank: those of this rank, and the VAE if it encodes or decodes."""
    layers: list[tuple[Layer, list[Tensor]]] = []
    while True:
        message, tensors, body = channel.receive(0)
        if isinstance(message, Ready):
            break
        assert isinstance(message, Layer)
        layers.append((message, [tensor.clone() for tensor in tensors]))
        channel.done(body)
    first, end = message.ends[channel.rank - 1], message.ends[channel.rank]
    shard = Shard(Shard.empty(_config(message.config)), first, first, channel.device)
    for layer, weights in layers:
        shard.take(layer, weights)
    assert (shard.first, shard.end) == (first, end)
    rank, codec = Rank(channel, shard, message.ends), None
    if message.codec:
        codec = CodecService(channel.beside(), tensors[0], rank.device)
        channel.done(body)
    return rank, codec


def _config(stated: dict[str, Any]) -> DiTConfig:
    return DiTConfig(**{**stated, "patch": tuple(stated["patch"])})


def _end_with_parent() -> None:
    """Leave when the first rank's process is gone, however it ended: its end of the pipe is closed then."""

    def watch() -> None:
        while os.read(sys.stdin.fileno(), 1):
            pass
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def main() -> None:
    """Join the ring that the environment names, as `torchrun` sets it."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if core := os.environ.get("WAVECORE_RING_CORE"):
        os.sched_setaffinity(0, {int(core)})  # before any connection: its threads stay on this core then
    if os.environ.get("WAVECORE_RING_PARENT"):
        _end_with_parent()
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    try:
        serve(Channel(store, rank, size, own_device(store)))
    except RuntimeError as error:  # a neighbour is gone: the first rank says which
        print(f"wavecore: rank {rank} of the ring: {str(error).splitlines()[0]}", file=sys.stderr)
        sys.exit(1)


if __name__ == "__main__":
    main()
