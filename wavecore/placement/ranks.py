"""Ranks that `torchrun` starts, on one machine or many; rank 0 has the session too.

The session's process takes connections from the other ranks; the work of rank 0 is done by a child of it, as
on one machine. Ranks meet through the store that `torchrun` serves.
"""

from __future__ import annotations

import hmac
import json
import os
import secrets
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch.distributed as dist

from wavecore.errors import UsageError, WavecoreError
from wavecore.models.dit import CausalWanDiT
from wavecore.placement.nursery import Nursery, how_it_ended
from wavecore.placement.protocol import checksum

_ADDRESS = "wavecore/ranks"
_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def rank() -> int | None:
    """Rank that `torchrun` has given this process; None when it was not started so."""
    return int(os.environ["RANK"]) if all(name in os.environ for name in _VARIABLES) else None


def one_machine() -> bool:
    """Whether all ranks of the job are on this machine, and so can share memory."""
    return os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE")


class Ranks:
    """The ranks of a job as processes; see `Nursery`, which has the same calls.

    Parameters
    ----------
    dit : CausalWanDiT
    timeout : float
        Seconds within which every rank has to come.

    Raises
    ------
    UsageError
        The process was not started by `torchrun`.
    """

    def __init__(self, dit: CausalWanDiT, timeout: float) -> None:
        if rank() != 0:
            raise UsageError("launch: expected a process that torchrun started as rank 0")
        self.host = os.environ["MASTER_ADDR"]
        self.checksum = checksum(dit)
        self._store = _store(timeout)
        self._timeout = timeout
        self._own = Nursery(dit)
        self._remote: dict[int, tuple[Connection, Callable[[str], None]]] = {}

    def fork(self, count: int, on_exit: Callable[[int, str], None]) -> list[tuple[int, Connection]]:
        """Take every rank; returns a number of its own and the connection of each.

        Raises
        ------
        UsageError
            Another number of ranks than `count`.
        WavecoreError
            A rank does not come in time; names it.
        """
        size = int(os.environ["WORLD_SIZE"])
        if size != count:
            self._store.set(_ADDRESS, json.dumps(None))  # so that the others end
            raise UsageError(f"ranks: expected torchrun with {count} processes, got {size}")
        token = secrets.token_hex(16)
        connections: dict[int, tuple[int, Connection]] = {}
        with socket.create_server((socket.gethostbyname(self.host), 0)) as server:
            self._store.set(_ADDRESS, json.dumps([*server.getsockname()[:2], token]))
            deadline = time.monotonic() + self._timeout
            while len(connections) < count - 1:
                server.settimeout(max(0.01, deadline - time.monotonic()))
                try:
                    accepted, _ = server.accept()
                except TimeoutError:
                    missing = min(set(range(1, count)) - connections.keys())
                    raise WavecoreError(
                        f"rank {missing}: expected it within {self._timeout:g} s, it did not come"
                    ) from None
                accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection = Connection(accepted.detach())
                other, pid, said = json.loads(connection.recv_bytes(256))
                if hmac.compare_digest(said, token):
                    connections[other] = pid, connection
        ranks = [*self._own.fork(1, on_exit), *(connections[other] for other in range(1, count))]
        for other, (_, connection) in connections.items():
            self._remote[other] = connection, partial(on_exit, other)
        return ranks

    def disconnected(self, rank: int) -> None:
        """The connection of a rank has ended: elsewhere that is all one knows of its end."""
        if rank in self._remote:
            _, gone = self._remote.pop(rank)
            gone(how_it_ended(None))

    def kill(self, pids: list[int]) -> None:
        """End ranks: the child here, and others by ending their connection."""
        self._own.kill(pids)
        for connection, _ in list(self._remote.values()):
            with suppress(OSError):
                socket.socket(fileno=os.dup(connection.fileno())).shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End the child here."""
        self._own.close()


def serve_rank(dit: CausalWanDiT, timeout: float = 300.0) -> int:
    """Do the work of this rank until the session ends; returns the exit code of the process.

    Parameters
    ----------
    dit : CausalWanDiT
        The same weights as on every other rank.
    timeout : float
        Seconds within which rank 0 has to come.
    """
    from wavecore.placement.worker import serve

    own = rank()
    if not own:
        raise UsageError("rank: expected a process that torchrun started as rank 1 or above")
    address = _address(timeout)
    if address is None:
        raise WavecoreError(f"rank {own}: expected rank 0 to take it, it did not")
    host, port, token = address
    try:
        connected = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise WavecoreError(f"rank 0: expected a connection at {host}:{port}, got: {error}") from None
    connected.settimeout(None)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection = Connection(connected.detach())
    connection.send_bytes(json.dumps([own, os.getpid(), token]).encode())
    return serve(connection, dit, checksum(dit))


def _address(timeout: float) -> tuple[str, int, str] | None:
    """Where rank 0 takes connections; None when it does not."""
    deadline = time.monotonic() + timeout
    late = f"rank 0: expected it within {timeout:g} s, it did not come"
    try:
        store = _store(timeout)
    except RuntimeError:
        raise WavecoreError(late) from None
    while time.monotonic() < deadline:
        try:
            store.wait([_ADDRESS], timedelta(seconds=1))  # short waits, so that a signal gets through
            address = json.loads(store.get(_ADDRESS))
        except dist.DistNetworkError:  # rank 0 has ended, and its store with it
            return None
        except RuntimeError:  # not there yet
            continue
        return None if address is None else (address[0], address[1], address[2])
    raise WavecoreError(late)


def _store(timeout: float) -> Any:
    """The store of the job, which the agent of `torchrun` serves, or rank 0 where nobody does."""
    served = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return dist.TCPStore(
        os.environ["MASTER_ADDR"],
        int(os.environ["MASTER_PORT"]),
        is_master=rank() == 0 and not served,
        timeout=timedelta(seconds=timeout),
        wait_for_workers=False,
    )
