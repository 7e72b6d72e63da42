"""The processes of a ring on one machine."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence

import torch

from wavecore.placement.launch import module_command


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
