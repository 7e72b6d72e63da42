"""The processes of a ring on one machine."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence

import torch

from wavecore.placement.launch import module_command

_END_SECONDS = 2.0


def start_rank(rank: int, size: int, port: int, core: int | None = None) -> subprocess.Popen[bytes]:
    """Start a rank that finds the first one at a loopback port, on `core` alone where one is given."""
    environment = {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WAVECORE_RING_PARENT": str(os.getpid()),
        "OMP_NUM_THREADS": str(torch.get_num_threads()),
    }
    if core is not None:
        environment["WAVECORE_RING_CORE"] = str(core)
    command = module_command("wavecore.placement.layers.worker")
    return subprocess.Popen(command, stdin=subprocess.PIPE, env=environment)


def end_ranks(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End what is still there and wait for it."""
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
        if process.stdin is not None:
            process.stdin.close()


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
