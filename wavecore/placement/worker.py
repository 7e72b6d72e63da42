"""The process of one rank."""

from __future__ import annotations

import os
import select
import sys
import threading
import traceback
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from wavecore import __version__
from wavecore.cache import PagePool
from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT
from wavecore.placement import protocol
from wavecore.placement.call_share import CallShare
from wavecore.placement.exchange import Exchange, RankPages
from wavecore.placement.segment import placed
from wavecore.placement.sequence.messages import Join
from wavecore.placement.sequence.worker import serve_sequence
from wavecore.placement.share import listen
from wavecore.placement.stream_share import StreamShare

_GONE = "the process of the session has ended"


def serve(connection: Connection, dit: CausalWanDiT, digest: str, aloud: bool = True) -> int:
    """Work as a rank of a wavefront, or of a sequence, until the connection ends; returns the exit code.

    Why it failed is told to the session, and with `aloud` on standard error too, for a rank that has its own.
    """
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
    except Exception as error:  # such as a device without memory: nobody else could say what it was
        traceback.print_exc()
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:400]
    if aloud:
        print(f"wavecore: {reason}", file=sys.stderr, flush=True)
    with suppress(OSError):  # there may be nobody to tell
        protocol.send(connection, protocol.Failed(reason))
    return 1


class Worker:
    """One rank: sets up the exchange, then goes through one tick after the other, with all streams in it.

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
        self._connection, self._setup = connection, setup
        self._device = None if setup.device is None else torch.device(setup.device)
        self._dit = dit if self._device is None else dit.to(self._device)
        if self._dit.patch_embedding.weight.is_cuda:
            torch.cuda.set_device(self._device)
        torch.set_num_threads(setup.threads)
        if setup.core is not None:
            os.sched_setaffinity(0, {setup.core})
        self._send = partial(protocol.send, connection)
        self._exchange = self._connect(digest)
        threading.Thread(target=self._watch, daemon=True).start()
        self._pages = {
            rank: RankPages(layout.pool, setup.generations)
            for rank, layout in enumerate(setup.layouts)
            if rank == setup.rank or setup.map.sends(setup.rank, rank)
        }
        self._tick = self._asked = 0
        self._streams: list[StreamShare] = []  # at work here, the oldest first

    # -- before the first stream ---------------------------------------------------------

    def _connect(self, digest: str) -> Exchange:
        """Meet the other ranks."""
        from wavecore._native import HostDriver
        from wavecore.placement.peer import DevicePages, PeerExchange, open_pages, share_pages
        from wavecore.placement.shared import SharedExchange

        setup = self._setup
        layout = setup.layouts[setup.rank]
        self._driver = driver = HostDriver(spin_us=setup.spin_us, link_bytes_per_us=setup.link_bytes_per_us)
        own = driver.allocate(layout.bytes)
        device_pages = None if self._device is None else DevicePages.allocate(layout, self._device)
        self._pool = self._pool_at(own + layout.pages) if device_pages is None else device_pages.pool
        store, port = None, 0
        if setup.transport == "gloo" and setup.rank == 0:
            store = _store("127.0.0.1", 0, True, setup.timeout)
            port = store.port
        shared = {} if device_pages is None else share_pages(setup, device_pages)
        handle = driver.share(own)
        self._send(protocol.Hello(setup.rank, os.getpid(), __version__, digest, handle, port, shared))
        peers = protocol.receive(self._connection)
        if isinstance(peers, protocol.Abort):
            raise WavecoreError(peers.reason)
        exchange: Exchange
        if setup.transport == "gloo":
            exchange = self._join(store or _store(peers.host, peers.port, False, setup.timeout))
        else:
            segments = [
                own if rank == setup.rank else driver.open(handle)
                for rank, handle in enumerate(peers.handles)
            ]
            arguments = (
                driver,
                setup.rank,
                setup.map,
                list(setup.layouts),
                segments,
                setup.mode,
                setup.generations,
                setup.timeout,
                setup.record,
            )
            if device_pages is None:
                exchange = SharedExchange(*arguments)
            else:
                pages = open_pages(setup, device_pages, peers.pages)
                exchange = PeerExchange(pages, *arguments)
        self._send(protocol.Ready())
        return exchange

    def _pool_at(self, address: int) -> PagePool:
        """The pages of this rank."""
        layout = self._setup.layouts[self._setup.rank]
        return layout.shape.pool(layout.pool, placed(address))

    def _join(self, store: Any) -> Exchange:
        import torch.distributed as dist

        from wavecore.placement.gloo import GlooExchange

        setup = self._setup
        try:
            dist.init_process_group(
                "gloo",
                store=store,
                rank=setup.rank,
                world_size=setup.map.ranks,
                timeout=timedelta(seconds=setup.timeout),
            )
        except RuntimeError as error:
            raise WavecoreError(f"gloo: {str(error).splitlines()[0]}") from None
        shape = setup.layouts[0].shape
        return GlooExchange(shape, setup.mode, setup.generations, self._pool, setup.record)

    def _watch(self) -> None:
        """End a wait for another rank when the session hangs up."""
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
            while True:
                self._ask()
                if (message := self._next()) is None:
                    return
                self._take(message)
        except WavecoreError as error:
            if str(error) != _GONE:
                raise
            raise WavecoreError(self._last_words()) from None

    def _ask(self) -> None:
        """Ask for the next tick, once, where chunks are under way here and the session has said nothing."""
        wanted = self._tick + 1
        at_work = any(not stream.over for stream in self._streams)
        if at_work and self._asked < wanted and not self._connection.poll():
            self._send(protocol.Wanted(wanted))
            self._asked = wanted

    def _take(self, message: Any) -> None:
        """Do what the session says. Streams begin one after the other, so it speaks of the latest one."""
        match message:
            case protocol.Begin():
                self._streams.append(
                    StreamShare(
                        message,
                        self._setup,
                        self._dit,
                        self._pool,
                        self._pages,
                        self._exchange,
                        self._send,
                    )
                )
            case protocol.Text():
                self._streams[-1].text(message)
            case protocol.Enter():
                self._streams[-1].enter(message)
                self._go_on()
            case protocol.End(chunks):
                self._streams[-1].job.chunks = chunks
                self._settle()
            case protocol.NoChunk():
                self._go_on()
            case protocol.BeginCalls():
                self._calls(message)

    def _go_on(self) -> None:
        """Go through the next tick: the stages of older streams first, since they are the cleaner ones."""
        self._tick += 1
        for pages in self._pages.values():
            pages.turn()
        begun = [(stream, *stream.begin(self._tick)) for stream in self._streams]
        unread = [arrival for _, _, left in begun for arrival in left]
        works = [(stream, work) for stream, works, _ in begun for work in works]
        if works:
            works[-1][1].arrivals += unread
        coming = [arrival for _, work in works for arrival in work.arrivals] if works else unread
        self._exchange.expect(self._tick, coming)
        for stream, work in works:
            stream.run(work, work is works[-1][1])
        if not works:
            listen(self._exchange, self._dit.config.layers, self._tick, unread)
            if self._setup.record:
                self._exchange.take_records()  # nobody asks for those of a tick without a slot
        for stream in self._streams:
            stream.end()
        self._settle()

    def _settle(self) -> None:
        self._streams = [stream for stream in self._streams if not stream.settle()]

    def _calls(self, begin: protocol.BeginCalls) -> None:
        """Run a stream of calls, which has the ranks for itself."""
        own = self._pages[self._setup.rank]
        share = CallShare(begin, self._setup, self._dit, self._pool, own, self._exchange, self._send)
        while not isinstance(message := self._next(), protocol.End):
            if isinstance(message, protocol.Plan):
                self._tick += 1
                share.round(message, self._tick)
            else:
                share.text(message)
        share.close()


def _store(host: str, port: int, is_master: bool, timeout: float) -> Any:
    import torch.distributed as dist

    return dist.TCPStore(
        host, port, is_master=is_master, timeout=timedelta(seconds=timeout), wait_for_workers=False
    )
