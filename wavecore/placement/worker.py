"""The process of one stage."""

from __future__ import annotations

import os
import select
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch
from torch import Tensor

from wavecore import __version__
from wavecore.cache import PagePool
from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.call_stage import CallStage
from wavecore.placement.exchange import Exchange, Job
from wavecore.placement.handoff import Handoff, renoise
from wavecore.placement.segment import placed
from wavecore.placement.sequence.messages import Join
from wavecore.placement.sequence.worker import serve_sequence
from wavecore.placement.stage import StageRunner
from wavecore.rounds import NoiseLevel

_GONE = "the process of the session has ended"


def serve(connection: Connection, dit: CausalWanDiT, digest: str) -> int:
    """Work as a stage, or as a rank of a sequence, until the connection ends; returns the exit code."""
    try:
        first = protocol.receive(connection)
        if isinstance(first, Join):
            serve_sequence(connection, dit, first)
        else:
            Worker(connection, dit, digest, first).run()
        return 0
    except WavecoreError as error:
        reason = str(error)
    except (EOFError, ConnectionError):
        reason = _GONE
    print(f"wavecore: {reason}", file=sys.stderr, flush=True)
    with suppress(OSError):  # there may be nobody to tell
        protocol.send(connection, protocol.Failed(reason))
    return 1


class Worker:
    """One stage: sets up the exchange, then runs one stream after the other.

    Parameters
    ----------
    connection : Connection
        To the process of the session.
    dit : CausalWanDiT
    digest : str
        `protocol.checksum` of its weights.
    setup : protocol.Setup
    """

    def __init__(self, connection: Connection, dit: CausalWanDiT, digest: str, setup: protocol.Setup) -> None:
        self._connection, self._dit, self._setup = connection, dit, setup
        torch.set_num_threads(setup.threads)
        if setup.core is not None:
            os.sched_setaffinity(0, {setup.core})
        self._exchange, self._memory = self._connect(digest)
        threading.Thread(target=self._watch, daemon=True).start()

    # -- before the first stream ---------------------------------------------------------

    def _connect(self, digest: str) -> tuple[Exchange, int]:
        """Meet the other stages; returns the exchange and the address of the pages of this stage."""
        from wavecore._native import HostDriver

        setup = self._setup
        layout = setup.layouts[setup.stage]
        self._driver = driver = HostDriver(spin_us=setup.spin_us, link_bytes_per_us=setup.link_bytes_per_us)
        own = driver.allocate(layout.bytes)
        store, port = None, 0
        if setup.transport == "gloo" and setup.stage == 0:
            store = _store("127.0.0.1", 0, True, setup.timeout)
            port = store.port
        hello = protocol.Hello(setup.stage, os.getpid(), __version__, digest, driver.share(own), port)
        protocol.send(self._connection, hello)
        peers = protocol.receive(self._connection)
        if isinstance(peers, protocol.Abort):
            raise WavecoreError(peers.reason)
        exchange: Exchange
        if setup.transport == "gloo":
            exchange = self._join(store or _store(peers.host, peers.port, False, setup.timeout))
        else:
            from wavecore.placement.shared import SharedExchange

            segments = [
                own if stage == setup.stage else driver.open(handle)
                for stage, handle in enumerate(peers.handles)
            ]
            exchange = SharedExchange(
                driver,
                setup.stage,
                list(setup.layouts),
                segments,
                setup.mode,
                setup.generations,
                setup.timeout,
                setup.record,
            )
        protocol.send(self._connection, protocol.Ready())
        return exchange, own + layout.pages

    def _join(self, store: Any) -> Exchange:
        import torch.distributed as dist

        from wavecore.placement.gloo import GlooExchange

        setup, shape = self._setup, self._setup.layouts[0].shape
        try:
            dist.init_process_group(
                "gloo",
                store=store,
                rank=setup.stage,
                world_size=shape.stages,
                timeout=timedelta(seconds=setup.timeout),
            )
        except RuntimeError as error:
            raise WavecoreError(f"gloo: {str(error).splitlines()[0]}") from None
        return GlooExchange(setup.stage, shape, setup.mode, setup.generations, setup.record)

    def _watch(self) -> None:
        """End a wait for another stage when the session hangs up."""
        # Woken by that alone: taking every message, it would take turns with the rounds at the interpreter.
        poll = select.poll()
        poll.register(self._connection.fileno(), select.POLLRDHUP)
        poll.poll()
        self._exchange.cancel(_GONE)

    def _next(self) -> Any:
        message = protocol.receive(self._connection)
        if isinstance(message, protocol.Abort):
            raise WavecoreError(message.reason)
        return message

    def _last_words(self) -> str:
        """Why the session has hung up: the last that it has sent, where it came to that."""
        with suppress(EOFError, OSError):
            while not isinstance(message := protocol.receive(self._connection), protocol.Abort):
                pass
            return message.reason
        return _GONE

    # -- streams -------------------------------------------------------------------------

    def run(self) -> None:
        """Run streams until the connection says that there are no more."""
        try:
            while (begin := self._next()) is not None:
                self._stream(begin).run()
        except WavecoreError as error:
            if str(error) != _GONE:
                raise
            raise WavecoreError(self._last_words()) from None

    def _stream(self, begin: protocol.Begin | protocol.BeginCalls) -> _Stream | CallStage:
        if isinstance(begin, protocol.Begin):
            return _Stream(self, begin)
        send = partial(protocol.send, self._connection)
        return CallStage(begin, self._dit, self._setup, self._exchange, self._pool(), self._next, send)

    def _pool(self) -> PagePool:
        """The pages of this stage."""
        layout = self._setup.layouts[self._setup.stage]
        shape = layout.shape
        return PagePool(
            shape.layers,
            layout.pool,
            shape.page_tokens,
            shape.heads,
            shape.head_dim,
            shape.dtype,
            place=placed(self._memory, shape.dtype),
        )

    @property
    def stage(self) -> int:
        """Which stage this is."""
        return self._setup.stage


class _Stream:
    """One stream on one stage."""

    def __init__(self, worker: Worker, begin: protocol.Begin) -> None:
        setup, dit = worker._setup, worker._dit
        layout = setup.layouts[setup.stage]
        shape = layout.shape
        channels, height, width = shape.latent
        self._worker, self._begin, self._dit = worker, begin, dit
        self._stage = setup.stage
        self._next: Callable[[], Any] = worker._next
        self._exchange = worker._exchange
        self._connection = worker._connection
        self._record = setup.record
        self._job = Job(begin.rules, begin.first_tick, setup.generations)
        self._job.chunks = begin.chunks
        pool = worker._pool()
        grid = height // dit.config.patch[1], width // dit.config.patch[2]
        self._runner = StageRunner(dit, self._job, self._stage, pool, grid, self._exchange)
        self._exchange.start(self._job, pool, self._runner.pages_of)
        self._handoff = Handoff(begin.levels, begin.seed, (channels, height, width))
        self._entered = 0
        self._version: dict[int, int] = {}
        self._texts: dict[int, TextContext] = {}
        self._levels: dict[int, Sequence[NoiseLevel]] = {}
        self._source: dict[int, Tensor] = {}

    def run(self) -> None:
        """Run the rounds of this stage to the end of the stream."""
        index, sent_before = self._stage, self._exchange.bytes_sent
        while self._wait_for(index):
            began = time.perf_counter()
            self._round(index)
            if self._record:
                records = self._exchange.take_records()
                self._send(
                    protocol.Round(
                        self._begin.number,
                        self._stage,
                        index,
                        index - self._stage,
                        began,
                        time.perf_counter(),
                        records,
                    )
                )
            index += 1
        self._runner.close()
        self._send(protocol.Finished(self._begin.number, self._exchange.bytes_sent - sent_before))

    def _send(self, message: Any) -> None:
        protocol.send(self._connection, message)

    def _wait_for(self, index: int) -> bool:
        """Take messages until round `index` may run; False when the stream is over for this stage."""
        job = self._job
        while True:
            if job.chunks is not None and index - self._stage >= job.chunks:
                if self._entered >= job.chunks:
                    return False
            elif index < self._entered or (job.chunks is not None and self._entered >= job.chunks):
                return True
            match self._next():
                case protocol.Text(version, keys, values):
                    self._texts[version] = TextContext(keys, values)
                case protocol.Enter(chunk, version, levels, source):
                    self._entered = chunk + 1
                    self._version[chunk] = version
                    if levels is not None:
                        self._levels[chunk] = levels
                    if source is not None:
                        self._source[chunk] = torch.from_numpy(source)
                case protocol.End(chunks):
                    job.chunks = chunks

    def _round(self, index: int) -> None:
        stage, rules = self._stage, self._job.rules
        chunk, tick = index - stage, self._job.first_tick + index
        frames = rules.frames(chunk)
        levels = self._levels.pop(chunk, self._begin.levels)
        self._runner.prepare(index, self._job.round(stage, index), levels)
        latent = self._input(chunk, frames, tick, levels)
        text = self._texts[self._version.pop(chunk)]
        x0 = self._runner.run(latent, text)
        oldest = min(self._version.values(), default=max(self._texts))
        self._texts = {version: text for version, text in self._texts.items() if version >= oldest}
        if x0 is None:
            return
        self._exchange.hand_on(tick, x0)
        if stage == rules.steps - 1:
            self._send(protocol.Complete(self._begin.number, chunk, x0.numpy()))

    def _input(self, chunk: int, frames: int, tick: int, levels: Sequence[NoiseLevel]) -> Tensor:
        """What a chunk looks like as it enters this stage."""
        stage = self._stage
        if stage == 0:
            source = self._source.pop(chunk, None)
            return self._handoff.noise(chunk, 0, frames) if source is None else source
        if stage == self._job.rules.steps:
            return self._exchange.latent(tick, frames)
        noise = self._handoff.noise(chunk, stage, frames)  # drawn before the wait
        return renoise(self._exchange.latent(tick, frames), noise, levels[stage].sigma)


def _store(host: str, port: int, is_master: bool, timeout: float) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        host, port, is_master=is_master, timeout=timedelta(seconds=timeout), wait_for_workers=False
    )
