"""Wave parallelism: the stages of a wavefront on ranks, each a process with a full model."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch

from wavecore.cache import PoolSize
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.dit import CausalWanDiT
from wavecore.placement import protocol
from wavecore.placement.exchange import pool_sizes
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import ReplicaOptions, check_hellos
from wavecore.placement.replica_stream import ReplicaPlacement, ReplicaStream
from wavecore.placement.segment import Layout, StreamShape
from wavecore.placement.sender import Sender
from wavecore.placement.ticks import Ticks
from wavecore.rounds import NoiseLevel, Rules
from wavecore.trace import Trace

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavecore.placement.ranks import Ranks

__all__ = ["ReplicaOptions", "ReplicaPlacement", "ReplicaStream", "Replicas"]

_GRACE = 5.0  # seconds that ranks have to end by themselves after one has failed


class Replicas:
    """Processes that run every wavefront stream of one shape, one stream after the other without a gap.

    Parameters
    ----------
    dit : CausalWanDiT
        On the CPU.
    rules : Wavefront
        Of the streams.
    latent : (channels, height, width)
        Of a latent frame.
    options : ReplicaOptions, optional
    trace : Trace, optional
        Takes the rounds of every rank, and each publication, wait and attention in them.
    nursery : Nursery, optional
        Where processes come from, when several `Replicas` follow each other; else one is made.
    pool : PoolSize, optional
        Pages of every rank, for one stream of calls (see `ReplicaCalls`) in place of streams of `rules`.

    Attributes
    ----------
    map : StageMap
        Which rank computes which stage.
    over : dict of int to ndarray or None
        Rounds of calls that are so far over that the next one is wanted, by number, with what they completed.
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        rules: Rules,
        latent: tuple[int, int, int],
        options: ReplicaOptions | None = None,
        trace: Trace | None = None,
        nursery: Nursery | None = None,
        pool: PoolSize | None = None,
    ) -> None:
        self.options = options = options or ReplicaOptions()
        weight = dit.patch_embedding.weight
        self.devices = options.devices_for(weight.device)
        if find_spec("wavecore._native") is None:
            raise UsageError(
                "placement: expected the native module for replicas, which a C++ compiler builds when "
                "wavecore is installed, got none"
            )
        self.rules, self.steps = rules, rules.steps
        self.map = map = options.stage_map(rules.steps + 1, self.devices)
        config = dit.config
        self.shape = StreamShape(
            map.stages,
            map.ranks,
            config.layers,
            dit.tokens_per_frame(*latent[1:]),
            config.heads,
            config.head_dim,
            max(rules.chunk_frames, rules.frames(0)),
            latent,
            weight.dtype,
            dit.int8_keys,
        )
        staging = options.generations if options.mode == "early" else 0
        sizes = pool_sizes(rules, map, options.generations) if pool is None else [pool] * map.ranks
        self.over: dict[int, NDArray[np.float32] | None] = {}
        self.layouts = [Layout(self.shape, size, staging, self.devices is not None) for size in sizes]
        self.trace = trace
        self.bytes_sent: dict[int, dict[int, int]] = {}
        self._lock = threading.Condition()
        self._failure: str | None = None
        self._exited: dict[int, str] = {}
        self._said: dict[int, str] = {}
        self._streams: dict[int, ReplicaStream] = {}
        self._waiting: deque[ReplicaStream] = deque()
        self._number = 0
        self._ticks = Ticks(rules.steps, lambda: self._tell_all(protocol.NoChunk()))
        self._closed = False
        self._own_nursery = nursery is None
        self._nursery: Nursery | Ranks = nursery or self._origin(dit)
        self._handshakes: list[queue.SimpleQueue[Any]] = [queue.SimpleQueue() for _ in range(map.ranks)]
        try:
            children = self._nursery.fork(map.ranks, self._on_exit)
        except BaseException:
            self.close()
            raise
        self._pids = [pid for pid, _ in children]
        self._connections = [connection for _, connection in children]
        self._senders = [Sender(connection) for connection in self._connections]
        self._readers: list[threading.Thread] = []
        try:
            self._meet()
        except BaseException:
            self.close()
            raise

    # -- start ---------------------------------------------------------------------------

    def _origin(self, dit: CausalWanDiT) -> Nursery | Ranks:
        """Where the processes of the ranks come from."""
        if self.options.launch == "fork":
            return Nursery(dit)
        from wavecore.placement.ranks import Ranks, one_machine

        if self.options.transport == "shared" and not one_machine():
            raise UsageError("transport: expected gloo where ranks are on several machines, got shared")
        return Ranks(dit, self.options.timeout)

    def _meet(self) -> None:
        """Set up every rank and make them known to each other."""
        options = self.options
        spin = options.spin_us(self.map.ranks)
        for rank, connection in enumerate(self._connections):
            reader = threading.Thread(target=self._listen, args=(rank, connection), daemon=True)
            self._readers.append(reader)
            reader.start()
            core = None if options.cores is None else options.cores[rank % len(options.cores)]
            setup = protocol.Setup(
                rank,
                self.map,
                options.mode,
                options.transport,
                options.generations,
                self.layouts,
                options.timeout,
                self.trace is not None,
                options.threads,
                core,
                spin,
                options.link_bytes_per_us,
                None if self.devices is None else self.devices[rank % len(self.devices)],
            )
            self._tell(setup, rank)
        hellos = [self._reply(rank) for rank in range(self.map.ranks)]
        check_hellos(hellos, self.map, self._nursery.checksum)
        handles = [hello.handle for hello in hellos]
        for rank in range(self.map.ranks):
            pages = {hello.rank: hello.pages[rank] for hello in hellos if rank in hello.pages}
            self._tell(protocol.Peers(handles, self._nursery.host, hellos[0].port, pages), rank)
        for rank in range(self.map.ranks):
            self._reply(rank)

    def _reply(self, rank: int) -> Any:
        deadline = time.monotonic() + self.options.timeout
        while True:
            with suppress(queue.Empty):
                return self._handshakes[rank].get(timeout=0.1)
            self.check()
            if time.monotonic() > deadline:
                raise WavecoreError(
                    f"{self.map.name(rank)}: expected it within {self.options.timeout:g} s, it did not come"
                )

    # -- messages ------------------------------------------------------------------------

    def _tell(self, message: Any, *ranks: int) -> None:
        """Send a message to some ranks."""
        data = protocol.encode(message)
        for rank in ranks:
            self._senders[rank].send(data)

    def _tell_all(self, message: Any) -> None:
        self._tell(message, *range(self.map.ranks))

    def _abort(self, reason: str) -> None:
        """Have every rank end, also one that waits for another and reads no message."""
        data = protocol.encode(protocol.Abort(reason))
        for connection, sender in zip(self._connections, self._senders, strict=True):
            sender.send(data)
            sender.flush(0.1)  # a rank that stands still may leave no room for the reason
            sender.close()
            with suppress(OSError):
                protocol.hang_up(connection)

    def _listen(self, rank: int, connection: Connection) -> None:
        while True:
            try:
                message = protocol.receive(connection)
            except (EOFError, OSError):
                self._nursery.disconnected(rank)
                return
            match message:
                case protocol.Hello() | protocol.Ready():
                    self._handshakes[rank].put(message)
                case protocol.Complete(number, chunk, latent):
                    with self._lock:
                        if number in self._streams:
                            self._streams[number]._complete[chunk] = torch.from_numpy(latent)
                        self._lock.notify_all()
                case protocol.Wanted(tick):
                    self._ticks.wanted(tick)
                case protocol.Over(index, made):
                    with self._lock:
                        self.over[index] = made
                        self._lock.notify_all()
                case protocol.Finished(number, sent):
                    with self._lock:
                        self.bytes_sent.setdefault(number, {})[rank] = sent
                        self._lock.notify_all()
                case protocol.Failed(reason):
                    with self._lock:
                        self._said[rank] = reason
                        self._lock.notify_all()
                case protocol.Round():
                    self._log(rank, message)

    def _log(self, rank: int, over: protocol.Round) -> None:
        if self.trace is None:
            return
        track = self.map.name(rank)
        self.trace.record(
            "round",
            time=over.begin,
            duration=over.end - over.begin,
            track=track,
            index=over.index,
            slots={str(over.stage): over.chunk},
        )
        for record in over.records:
            data: dict[str, Any] = {"layer": record["layer"], "round": over.index}
            if record["from"] is not None:
                data |= {"edge": [record["from"], record["to"]]}
            if record["step"] == "wait":
                # How long after the reader wanted it the data was there: max(0, tau - Delta).
                data["exposed"] = max(0.0, record["written"] - record["begin"])
            self.trace.record(
                record["step"],
                time=record["begin"],
                duration=max(0.0, record["end"] - record["begin"]),
                track=track,
                **data,
            )

    # -- failure -------------------------------------------------------------------------

    def _on_exit(self, rank: int, how: str) -> None:
        with self._lock:
            self._exited[rank] = how
            self._lock.notify_all()
            if self._closed or self._failure is not None:
                return
            self._failure = self._reason(rank, how)
        threading.Thread(target=self._end_all, daemon=True).start()

    def _reason(self, rank: int, how: str) -> str:
        name = f"{self.map.name(rank)}, process {self._pids[rank] if hasattr(self, '_pids') else '?'}"
        if rank in self._said:
            return f"{name}: {self._said[rank]}"
        return f"{name}: {how}"

    def _end_all(self) -> None:
        """Ask the ranks that are left to end, then end them."""
        assert self._failure is not None
        self._abort(self._failure)
        with self._lock:
            self._lock.wait_for(lambda: len(self._exited) == self.map.ranks, timeout=_GRACE)
            left = [pid for rank, pid in enumerate(self._pids) if rank not in self._exited]
            self._lock.notify_all()
        if left:
            self._nursery.kill(left)

    def check(self) -> None:
        """Raise the error that has ended the ranks, if any."""
        if self._failure is not None:
            raise WavecoreError(self._failure)
        if self._closed:
            raise UsageError("placement: expected open replicas, got closed ones")

    def wake(self) -> None:
        """Let every `ReplicaStream.take` look again; from any thread."""
        with self._lock:
            self._lock.notify_all()

    @property
    def pids(self) -> list[int]:
        """Process of each rank."""
        return list(self._pids)

    @property
    def failed(self) -> bool:
        """Whether a rank has ended that should not have."""
        return self._failure is not None

    def close(self) -> None:
        """End the ranks. Streams that are not over are given up."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._lock.notify_all()
        pids = getattr(self, "_pids", [])
        if pids and self._failure is None:
            if self._streams:
                self._abort("closed")
            else:
                self._tell_all(None)
        with self._lock:
            self._lock.wait_for(lambda: len(self._exited) == len(pids), timeout=0.5 if self._streams else 2.0)
            left = [pid for rank, pid in enumerate(pids) if rank not in self._exited]
        if left:
            self._nursery.kill(left)
            with self._lock:
                self._lock.wait_for(lambda: len(self._exited) == len(pids), timeout=_GRACE)
        for reader in getattr(self, "_readers", []):
            reader.join(_GRACE)  # it ends with the process that it listens to
        for sender in getattr(self, "_senders", []):
            sender.close()
        for connection in getattr(self, "_connections", []):
            connection.close()
        if self._own_nursery:
            self._nursery.close()

    def __enter__(self) -> Replicas:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- streams -------------------------------------------------------------------------

    def stream(
        self, rules: Rules, levels: Sequence[NoiseLevel], seed: int, chunks: int | None = None
    ) -> ReplicaStream:
        """Queue a stream; it begins when every chunk of those before it has entered.

        Raises
        ------
        UsageError
            Its rounds need more than the ranks have room for.
        """
        self.check()
        if rules.steps != self.steps or rules.chunk_frames > self.shape.chunk_frames:
            raise UsageError(
                f"stream: expected {self.steps} steps and at most {self.shape.chunk_frames} latent frames "
                f"a chunk, got {rules.steps} and {rules.chunk_frames}"
            )
        if rules != self.rules:
            needed = pool_sizes(rules, self.map, self.options.generations, chunks)
            for rank, (need, layout) in enumerate(zip(needed, self.layouts, strict=True)):
                if need.pages > layout.pool.pages or need.unroped_pages > layout.pool.unroped_pages:
                    raise UsageError(
                        f"stream: expected at most {layout.pool.pages} pages at "
                        f"{self.map.name(rank)}, got {need.pages}"
                    )
        with self._lock:
            stream = ReplicaStream(self, self._number, rules, levels, seed, chunks)
            self._streams[self._number] = stream
            self._number += 1
            self._waiting.append(stream)
        return stream
