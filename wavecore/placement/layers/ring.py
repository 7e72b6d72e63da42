"""The first rank of a ring: starts the others, hands rounds in, takes results out."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.control.streaming import BlockScheduler
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.dit import CausalWanDiT
from wavecore.models.stream import StreamingVAE
from wavecore.placement.layers.channel import Channel, agree_on_devices
from wavecore.placement.layers.codec import CodecClient, RingVAE, packed
from wavecore.placement.layers.messages import Close, Layer, Open, Ready, Stop, Work
from wavecore.placement.layers.processes import (
    check_devices,
    end_ranks,
    fault_of,
    lost,
    start_rank,
    wait_for_ranks,
)
from wavecore.placement.layers.rank import Rank
from wavecore.placement.layers.shard import HEAD, Shard
from wavecore.placement.layers.stream import RingPlacement
from wavecore.placement.layers.streams import Mark, own_stream
from wavecore.placement.local import Batch
from wavecore.rounds import CallRules, Rules, StreamBatch
from wavecore.trace import Trace

_POLL_SECONDS = 0.2


@dataclass
class _Flight:
    """A round on its way, with what the first rank keeps of it."""

    batches: list[Batch]


class Ring:
    """Contiguous layer ranges of one model over processes in a ring.

    Rank 0 is the process that makes it: it embeds, holds the first layers, and makes the clean estimates. The
    others run `wavecore.placement.layers.worker`, started here over loopback, or elsewhere by torchrun when
    its environment variables are set.

    Parameters
    ----------
    dit : CausalWanDiT
        The model; layers that other ranks hold are moved to the meta device unless `keep`.
    ranks : int
        Processes, this one included; at most the number of layers.
    split : sequence of int, optional
        Layers of each rank; as even as can be, the first ranks one more, when not given.
    keep : bool
        Leave the model whole, for other streams that run it here.
    scheduler : BlockScheduler, optional
        Moves layers between ranks when measured times say that it pays; they stay when not given.
    for_one_stream : bool
        End the ring with its first stream.
    trace : Trace, optional
        Event log, for the rounds on each rank and for layers that move.
    vae : StreamingVAE, optional
        Needed where another rank encodes or decodes.
    encode_on, decode_on : int
        Ranks that encode and decode, beside their layers.
    cores : sequence of int, optional
        Processor core of each rank on this machine; the calling thread and those it starts stay on the first.
        Not pinned when not given.

    Attributes
    ----------
    micro_step : int
        Rounds handed in so far.
    seconds : list of list of float
        Time of each layer on each rank, of the latest round that came back.

    Raises
    ------
    UsageError
        More ranks than layers, or a split or cores that do not fit.
    WavecoreError
        A rank ended; the message names it. The others are then gone too.
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        ranks: int,
        split: Sequence[int] | None = None,
        keep: bool = True,
        scheduler: BlockScheduler | None = None,
        for_one_stream: bool = False,
        trace: Trace | None = None,
        vae: StreamingVAE | None = None,
        encode_on: int = 0,
        decode_on: int = 0,
        cores: Sequence[int] | None = None,
    ) -> None:
        layers = dit.config.layers
        if not 1 <= ranks <= layers:
            raise UsageError(f"devices: expected 1 to {layers} ranks for {layers} layers, got {ranks}")
        for name, place in (("encode_on", encode_on), ("decode_on", decode_on)):
            if not 0 <= place < ranks:
                raise UsageError(f"{name}: expected a rank from 0 to {ranks - 1}, got {place}")
        if cores is not None and len(cores) != ranks:
            raise UsageError(f"cores: expected one for each of {ranks} ranks, got {list(cores)}")
        self.ranks = ranks
        self.dit = dit
        ends = self._ends(split or [layers // ranks + (r < layers % ranks) for r in range(ranks)])
        self.micro_step = 0
        self.seconds: list[list[float]] = []
        self._scheduler, self._for_one_stream = scheduler, for_one_stream
        self._came_back: float | None = None
        self._trace = Trace() if trace is None else trace
        self._streams = 0
        self._flights: dict[int, queue.SimpleQueue[_Flight]] = {}
        self._results: dict[int, queue.SimpleQueue[tuple[Work, list[Tensor], Mark]]] = {}
        self._failed: str | None = None
        self._split: list[int] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._finalizer = weakref.finalize(self, end_ranks, self._processes, self._threads)
        channel = self._join(cores)
        self._rank = Rank(channel, Shard(dit, 0, ends[0]), ends)
        elsewhere = sorted({encode_on, decode_on} - {0}) if vae is not None else []
        if ranks > 1:
            self._send_weights(channel, dit, ends, {rank: packed(vae) for rank in elsewhere if vae})
            if not keep:
                for layer in range(ends[0], layers):
                    dit.layer(layer).to("meta")
            self._receiver = threading.Thread(target=self._receive, daemon=True)
            self._receiver.start()
            self._threads.append(self._receiver)
        why = partial(lost, self._processes)
        self._codecs = {rank: CodecClient(channel.beside(), rank, why) for rank in elsewhere}
        self._threads += [codec.thread for codec in self._codecs.values()]
        self.vae = None if vae is None else RingVAE(vae, self._codecs, encode_on, decode_on)

    # -- start and end -------------------------------------------------------------------

    def _ends(self, split: Sequence[int]) -> list[int]:
        ends = [sum(split[: rank + 1]) for rank in range(len(split))]
        if len(split) != self.ranks or min(split) < 1 or ends[-1] != self.dit.config.layers:
            raise UsageError(
                f"split: expected {self.ranks} numbers of at least 1 that make {self.dit.config.layers}, "
                f"got {list(split)}"
            )
        return ends

    def _join(self, cores: Sequence[int] | None) -> Channel:
        if cores is not None:
            os.sched_setaffinity(0, {cores[0]})  # before any connection: its threads stay on this core then
        environment = os.environ
        device = self.dit.patch_embedding.weight.device
        if int(environment.get("WORLD_SIZE", "1")) == self.ranks > 1:
            store = dist.TCPStore(
                environment["MASTER_ADDR"], int(environment["MASTER_PORT"]), is_master=False
            )
            agree_on_devices(store, device)
            return Channel(store, 0, self.ranks, device)
        check_devices(device, self.ranks)
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        agree_on_devices(store, device)
        for rank in range(1, self.ranks):
            core = None if cores is None else cores[rank]
            local = (device.index or 0) + rank  # the GPUs behind that of the first rank, in turn
            self._processes.append(start_rank(rank, self.ranks, store.port, core, local))
        try:
            return wait_for_ranks(self._processes, lambda: Channel(store, 0, self.ranks, device))
        except BaseException:
            self._finalizer()
            raise

    def _send_weights(
        self, channel: Channel, dit: CausalWanDiT, ends: Sequence[int], codecs: Mapping[int, Tensor]
    ) -> None:
        for rank in range(1, self.ranks):
            for layer in range(ends[rank - 1], ends[rank]):
                weights = dit.layer(layer).state_dict()
                channel.send(rank, Layer(layer, list(weights)), list(weights.values()))
            if rank == self.ranks - 1:
                weights = dit.head.state_dict()
                channel.send(rank, Layer(HEAD, list(weights)), list(weights.values()))
            vae = [codecs[rank]] if rank in codecs else []
            channel.send(rank, Ready(asdict(dit.config), list(ends), bool(vae)), vae)
        channel.flush()

    def close(self) -> None:
        """End every rank and wait until they are gone."""
        if self._closed:
            return
        self._closed = True
        parts: tuple[Rank | CodecClient, ...] = (self._rank, *self._codecs.values())
        if self.ranks > 1 and self._failed is None and all(part.whole for part in parts):
            try:
                for codec in self._codecs.values():
                    codec.close()
                self._rank.channel.send(1, Stop())
                self._rank.channel.flush()
                self._receiver.join(10)
                for process in self._processes:
                    process.wait(10)
            except (RuntimeError, subprocess.TimeoutExpired):
                pass  # what is left is ended below
        self._finalizer()

    def __enter__(self) -> Ring:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- streams -------------------------------------------------------------------------

    def open(self, rules: Rules | CallRules, pages: PoolSize, height: int, width: int) -> RingPlacement:
        """Begin a stream of latents of `height` x `width`.

        Raises
        ------
        UsageError
            Its rounds are neither those of calls nor a stream batch with a lag of as many rounds as there are
            ranks.
        """
        batch = isinstance(rules, StreamBatch) and rules.lag == self.ranks
        if not batch and not isinstance(rules, CallRules):
            raise UsageError(
                f"rounds: expected stream_batch with a lag of {self.ranks} rounds for as many ranks, "
                f"got {type(rules).__name__} with {getattr(rules, 'lag', 1)}"
            )
        message = Open(self._streams, *pages, height, width, self.dit.int8_keys)
        self._streams += 1
        self._flights[message.stream] = queue.SimpleQueue()
        self._results[message.stream] = queue.SimpleQueue()
        self._rank.shard.open(message)
        self._tell(message)
        return RingPlacement(self, message.stream)

    def end_stream(self, stream: int) -> None:
        """Give up a stream's pages on every rank."""
        self._rank.shard.close(stream)
        del self._flights[stream], self._results[stream]
        if self._for_one_stream:
            self.close()
        elif not self._closed and self._failed is None:
            self._tell(Close(stream))

    # -- rounds --------------------------------------------------------------------------

    @torch.inference_mode()
    def submit(self, work: Work, groups: list[Batch], texts: Sequence[Tensor]) -> None:
        """Run the first layers of a round and hand it on."""
        self._check()
        work.micro_step = self.micro_step
        self.micro_step += 1
        work.split, self._split = self._split, []
        states = [group.state for group in groups]
        means = self._rank.run(work, states, texts)
        self._flights[work.stream].put(_Flight(groups))
        if self.ranks == 1:
            finished = [self.dit.finish(state) for state in states]
            self._results[work.stream].put((work, [*finished, *means], Mark(self._rank.channel.device)))
            return
        parts = chain.from_iterable((state.hidden, state.modulation, state.time) for state in states)
        self._tell(work, [*parts, *texts, *means])
        self._rank.after(work)
        if work.split:
            self._trace.record("move", split=list(self.split), micro_step=work.micro_step)

    @torch.inference_mode()
    def collect(self, stream: int) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Clean estimates of a stream's oldest round in flight, by stage, and mean hidden states."""
        asked = time.monotonic()
        while True:
            self._check()
            try:
                work, tensors, there = self._results[stream].get(timeout=_POLL_SECONDS)
                break
            except queue.Empty:
                self._failed = self._failed or fault_of(self._processes)
        there.wait(tensors)
        self._record(work)
        self._schedule(work, time.monotonic() - asked)
        estimates: dict[int, Tensor] = {}
        embeddings: dict[int, Tensor] = {}
        groups = self._flights[stream].get().batches
        for index, batch in enumerate(groups):
            stages = [slot.stage for slot in batch.slots]
            x0 = self.dit.to_x0(tensors[index], batch.latents, batch.sigma_timesteps).to(batch.latents.dtype)
            estimates |= dict(zip(stages, x0, strict=True))
            if work.probe is not None:
                embeddings |= dict(zip(stages, tensors[len(groups) + index], strict=True))
        return estimates, embeddings

    def _record(self, work: Work) -> None:
        """Log when each rank ran its layers; of ranks on other machines, whose clocks differ, nothing."""
        ago = self._trace.clock() - time.perf_counter()
        slots = {str(slot.stage): slot.chunk for slot in work.round.slots}
        for rank in range(len(self._processes) + 1):
            self._trace.record(
                "round",
                time=ago + work.began[rank],
                duration=sum(work.seconds[rank]),
                track=f"rank {rank}",
                index=work.round.index,
                slots=slots,
            )

    def _schedule(self, work: Work, waited: float) -> None:
        """Take note of the times of a round, and move layers when that pays."""
        self.seconds = work.seconds
        now, before = time.monotonic(), self._came_back
        self._came_back = now
        if self._scheduler is None or before is None:
            return
        extra = [0.0] * self.ranks
        for rank, codec in self._codecs.items():
            extra[rank], codec.worked = codec.worked, 0.0
            waited, codec.waited = waited + codec.waited, 0.0
        # What this rank does from round to round besides its layers and waiting: encode, decode, noise.
        extra[0] = max(0.0, now - before - waited - sum(work.seconds[0]))
        self._scheduler.observe(work.seconds, extra)
        better = self._scheduler.better(self.split)
        if better is not None:
            self.move(better)

    def move(self, split: Sequence[int]) -> None:
        """Change how many layers each rank holds, from the second round handed in after this on.

        Layers and their pages go from the old owner to the new one while the stream goes on.
        """
        ends = self._ends(split)
        if ends != list(self._rank.ends):
            self._split = ends

    @property
    def split(self) -> tuple[int, ...]:
        """Layers of each rank."""
        ends = self._rank.ends
        return tuple(end - first for first, end in zip((0, *ends), ends, strict=False))

    @property
    def messages(self) -> int:
        """Sends of this rank so far."""
        return self._rank.channel.messages

    # -- faults --------------------------------------------------------------------------

    def _tell(self, message: Any, tensors: Sequence[Tensor] = ()) -> None:
        if self.ranks == 1:
            return
        self._check()
        try:
            self._rank.channel.send(1, message, tensors)
        except RuntimeError as error:
            self._failed = lost(self._processes, 1, error)
            self._check()

    def _receive(self) -> None:
        """Take results as they come, so that a rank never waits for this process to ask for one."""
        channel = self._rank.channel.beside()
        try:
            with own_stream(channel.device):
                while True:
                    message, tensors, body = channel.receive(self.ranks - 1)
                    if isinstance(message, Stop):
                        return
                    if isinstance(message, Work) and message.stream in self._results:
                        result = [tensor.clone() for tensor in tensors]
                        self._results[message.stream].put((message, result, Mark(channel.device)))
                    channel.done(body)
        except RuntimeError as error:
            if not self._closed:
                self._failed = lost(self._processes, self.ranks - 1, error)

    def _check(self) -> None:
        if self._failed is None and not self._rank.whole:
            self._failed = "it was interrupted in the middle of a message"
        if (failed := self._failed) is not None:  # as it was before the ranks are ended
            self._finalizer()
            raise WavecoreError(f"ring: {failed}; the stream cannot go on")
        if self._closed:
            raise WavecoreError("ring: expected an open ring, got a closed one")
