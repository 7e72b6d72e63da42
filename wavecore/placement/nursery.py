"""Processes for stages, on one machine: a clean one loads once, and each stage is a copy of it.

Stages thus start in milliseconds and share the memory of the weights. The process of the session may have
threads, which a fork would break; this one has none.
"""

from __future__ import annotations

import ctypes
import gc
import mmap
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import torch

from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT
from wavecore.models.int8_linear import adopt_int8
from wavecore.placement.launch import start_module
from wavecore.placement.protocol import checksum

_PR_SET_PDEATHSIG = 1
_END_SECONDS = 5.0


class Nursery:
    """The clean process, as seen from the process of the session.

    Parameters
    ----------
    dit : CausalWanDiT
        Its weights are handed over in shared memory without a name.
    """

    def __init__(self, dit: CausalWanDiT) -> None:
        self.checksum = checksum(dit)
        self.host = "127.0.0.1"
        ours, theirs = socket.socketpair()
        weights, described = _pack(dit)
        try:
            files = theirs.fileno(), weights
            self._process = start_module(
                "wavecore.placement.nursery", *files, pass_fds=files, stdin=subprocess.DEVNULL
            )
        finally:
            theirs.close()
            os.close(weights)
        self._socket = ours
        self._control = Connection(os.dup(ours.fileno()))
        self._lock = threading.Lock()
        self._on_exit: dict[int, Callable[[str], None]] = {}
        self._replies: list[int] | None = None
        self._ended: str | None = None
        self._replied = threading.Condition()
        self._control.send((dit.config, described, self.checksum))
        threading.Thread(target=self._listen, daemon=True).start()

    def fork(self, count: int, on_exit: Callable[[int, str], None]) -> list[tuple[int, Connection]]:
        """Start processes; returns the number and the connection of each.

        Parameters
        ----------
        count : int
        on_exit : callable
            Called with the index and how it ended, in words, when one ends, from a thread.

        Raises
        ------
        WavecoreError
            The clean process has ended, or they do not start in time.
        """
        pairs = [socket.socketpair() for _ in range(count)]
        with self._lock, self._replied:
            self._replies = None
            with suppress(OSError):  # a process that has ended takes nothing: below it says so
                self._control.send(("fork", count))
                for _, theirs in pairs:
                    socket.send_fds(self._socket, [b"."], [theirs.fileno()])
            for _, theirs in pairs:
                theirs.close()
            self._replied.wait_for(lambda: self._ended or self._replies is not None, timeout=120)
            pids = self._replies
            if pids is None:
                for ours, _ in pairs:
                    ours.close()
                late = f"{self._name}: expected it to start them within 120 s, it did not"
                raise WavecoreError(self._ended or late)
            for index, pid in enumerate(pids):
                self._on_exit[pid] = partial(on_exit, index)
        return [(pid, Connection(ours.detach())) for pid, (ours, _) in zip(pids, pairs, strict=True)]

    @property
    def _name(self) -> str:
        return f"the process that starts the ranks, {self._process.pid}"

    def disconnected(self, stage: int) -> None:
        """The connection of a stage has ended: its process has too, which is told apart from that."""

    def kill(self, pids: list[int]) -> None:
        """End processes at once."""
        with suppress(OSError), self._lock:
            self._control.send(("kill", pids))

    def _listen(self) -> None:
        while True:
            try:
                kind, value = self._control.recv()
            except (EOFError, OSError):
                try:
                    how = _in_words(self._process.wait(_END_SECONDS))
                except subprocess.TimeoutExpired:
                    how = how_it_ended(None)
                with self._replied:
                    self._ended = f"{self._name}: {how}"
                    self._replied.notify_all()
                for gone in list(self._on_exit.values()):
                    gone(f"it ended with {self._ended}")
                return
            if kind == "forked":
                with self._replied:
                    self._replies = value
                    self._replied.notify_all()
            else:
                pid, status = value
                with self._replied:  # not before `fork` has noted who it is
                    ended = self._on_exit.pop(pid) if pid in self._on_exit else None
                if ended is not None:
                    ended(how_it_ended(status))

    def close(self) -> None:
        """End it and every process it has started."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._socket.close()
        self._control.close()

    def __enter__(self) -> Nursery:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def how_it_ended(status: int | None) -> str:
    """A wait status in words; None where only the connection is known to have ended."""
    if status is None:
        return "its connection has ended"
    return _in_words(os.waitstatus_to_exitcode(status))


def _in_words(code: int) -> str:
    """An exit code, or the negative number of a signal."""
    if code < 0:
        with suppress(ValueError):
            return f"it was ended by {signal.Signals(-code).name}"
        return f"it was ended by signal {-code}"
    return f"it ended with exit code {code}"


def _pack(dit: CausalWanDiT) -> tuple[int, list[tuple[str, tuple[int, ...], torch.dtype, int]]]:
    """Weights in a file without a name; returns it and what lies where."""
    described, at = [], 0
    for name, tensor in dit.state_dict().items():
        described.append((name, tuple(tensor.shape), tensor.dtype, at))
        at += -(-tensor.numel() * tensor.element_size() // 64) * 64
    file = os.memfd_create("wavecore-weights")
    os.ftruncate(file, max(at, 1))
    with mmap.mmap(file, max(at, 1)) as memory:
        for (_, _, _, start), tensor in zip(described, dit.state_dict().values(), strict=True):
            bits = tensor.detach().cpu().contiguous().view(torch.uint8).flatten().numpy()
            memory[start : start + bits.size] = bits.tobytes()
    return file, described


def _unpack(
    file: int, config: Any, described: list[tuple[str, tuple[int, ...], torch.dtype, int]]
) -> CausalWanDiT:
    with torch.device("meta"):
        dit = CausalWanDiT(config)
    memory = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
    tensors = {}
    for name, shape, dtype, start in described:
        count = torch.Size(shape).numel()
        tensors[name] = torch.frombuffer(memory, dtype=dtype, count=count, offset=start).view(shape)
    adopt_int8(dit, tensors)
    dit.load_state_dict(tensors, assign=True)
    return dit.eval().requires_grad_(False)


def _main() -> None:
    """Start processes on request and tell when they end; end with the process that asked."""
    sock = socket.socket(fileno=int(sys.argv[1]))
    control = Connection(os.dup(sock.fileno()))
    config, described, digest = control.recv()
    dit = _unpack(int(sys.argv[2]), config, described)
    gc.collect()
    gc.freeze()  # what is loaded stays: collections in the copies would look through all of it in vain
    children: dict[int, int] = {}  # their file descriptors, readable when one has ended
    poll = select.poll()
    poll.register(control.fileno(), select.POLLIN)
    while True:
        readable = {file for file, _ in poll.poll()}
        for pid, status in _reap({pid for pid, file in children.items() if file in readable}):
            poll.unregister(children[pid])
            os.close(children.pop(pid))
            with suppress(OSError):
                control.send(("exit", (pid, status)))
        if control.fileno() in readable:
            try:
                kind, value = control.recv()
            except (EOFError, OSError):
                for pid in children:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                for pid in children:
                    os.waitpid(pid, 0)
                return
            if kind == "kill":
                for pid in set(value) & children.keys():
                    os.kill(pid, signal.SIGKILL)
                continue
            files = [socket.recv_fds(sock, 1, 1)[1][0] for _ in range(value)]
            pids = []
            for index, connection in enumerate(files):
                others = [
                    *files[:index],
                    *files[index + 1 :],
                    sock.fileno(),
                    control.fileno(),
                    *children.values(),
                ]
                pids.append(_fork(connection, others, dit, digest))
            for pid, connection in zip(pids, files, strict=True):
                children[pid] = os.pidfd_open(pid)
                poll.register(children[pid], select.POLLIN)
                os.close(connection)
            with suppress(OSError):  # who asked has ended: the next turn of the loop ends the others
                control.send(("forked", pids))


def _reap(pids: set[int]) -> list[tuple[int, int]]:
    """Wait for processes that have ended: first those ended by a signal, which others may have missed."""
    statuses = [os.waitpid(pid, 0) for pid in pids]
    return sorted(statuses, key=lambda ended: not os.WIFSIGNALED(ended[1]))


def _fork(connection: int, others: list[int], dit: CausalWanDiT, digest: str) -> int:
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # Not to outlive the parent: asked for first, then checked, in case it has ended in between.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        for file in others:
            os.close(file)
        from wavecore.placement.worker import serve

        code = serve(Connection(connection), dit, digest, aloud=False)
    finally:
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _main()
