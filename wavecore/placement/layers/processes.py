"""The processes of a ring on one machine."""

from __future__ import annotations

import os
import queue
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

import torch

from wavecore.errors import UsageError, WavecoreError
from wavecore.placement.launch import start_module

_END_SECONDS = 2.0
_POLL_SECONDS = 0.2
_START_SECONDS = 300.0

Joined = TypeVar("Joined")


def check_devices(device: torch.device, ranks: int) -> None:
    """Refuse a ring on this machine whose first rank has a GPU and whose others would have none of their own.

    Raises
    ------
    UsageError
    """
    if device.type == "cuda" and ranks > torch.cuda.device_count():
        have = torch.cuda.device_count()
        raise UsageError(f"devices: expected at most {have} ranks, one for each GPU here, got {ranks}")


def start_rank(
    rank: int, size: int, port: int, core: int | None = None, local: int = 0
) -> subprocess.Popen[bytes]:
    """Start a rank that finds the first one at a loopback port, on `core` alone where one is given.

    `local` is the number of its GPU, where the first rank has one.
    """
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(local),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WAVECORE_RING_PARENT": str(os.getpid()),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    if core is not None:
        environment["WAVECORE_RING_CORE"] = str(core)
    worker = "wavecore.placement.layers.worker"
    return start_module(worker, environment=environment, stdin=subprocess.PIPE)


def wait_for_ranks(processes: Sequence[subprocess.Popen[bytes]], join: Callable[[], Joined]) -> Joined:
    """What `join` returns, once every rank has come.

    Raises
    ------
    WavecoreError
        A rank has ended, or they do not come in time.
    """
    joined: queue.SimpleQueue[tuple[Joined | None, RuntimeError | None]] = queue.SimpleQueue()

    def run() -> None:
        try:
            joined.put((join(), None))
        except RuntimeError as error:
            joined.put((None, error))

    # Nobody joins this thread: whatever ends the wait, an interrupt too, waits for no rank that is gone.
    threading.Thread(target=run, daemon=True).start()
    until = time.monotonic() + _START_SECONDS
    fault: str | None = None
    while fault is None:
        with suppress(queue.Empty):
            channel, error = joined.get(timeout=_POLL_SECONDS)
            if channel is not None:
                return channel
            assert error is not None
            fault = lost(processes, 1, error)
        fault = fault or fault_of(processes)
        if fault is None and time.monotonic() > until:
            fault = "its ranks did not start in time"
    raise WavecoreError(f"ring: {fault}")


def end_ranks(processes: Sequence[subprocess.Popen[bytes]], threads: Sequence[threading.Thread] = ()) -> None:
    """End what is still there and wait for it, and for threads here that receive from it.

    An interpreter that ends while such a thread comes back from a library that waited aborts.
    """
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(_END_SECONDS)


def fault_of(processes: Sequence[subprocess.Popen[bytes]]) -> str | None:
    """Which rank has ended, and how; the one that was killed rather than those that followed it."""
    ended = [(rank, process.poll()) for rank, process in enumerate(processes, 1)]
    gone = [(rank, code) for rank, code in ended if code is not None]
    if not gone:
        return None
    rank, code = min(gone, key=lambda item: item[1])
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"rank {rank} {how}"


def lost(processes: Sequence[subprocess.Popen[bytes]], rank: int, error: RuntimeError) -> str:
    """Why the connection to a rank ended: the system may tell of its end before it tells how."""
    until = time.monotonic() + _END_SECONDS
    while (fault := fault_of(processes)) is None and processes and time.monotonic() < until:
        time.sleep(0.01)
    return fault or f"rank {rank}: the connection ended ({str(error).splitlines()[0]})"
