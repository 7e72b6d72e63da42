"""What a result was measured on, and where results go."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

import torch

import wavecore

RESULTS = Path(__file__).parent / "results"


def machine() -> dict[str, Any]:
    """Processor, threads and versions."""
    model = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    flags = next((line.split(":")[1].split() for line in _cpuinfo() if line.startswith("flags")), [])
    wanted = ("avx2", "fma", "avx512f", "avx512_vnni", "amx_bf16", "amx_int8")
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "instructions": [flag for flag in wanted if flag in flags],
        "python": platform.python_version(),
        "torch": torch.__version__,
        "wavecore": wavecore.__version__,
        "system": platform.system(),
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


def read_result(name: str) -> dict[str, Any]:
    """What bench/results/`name`.json holds; nothing when there is no such file."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write_result(name: str, result: dict[str, Any]) -> Path:
    """Write `result`, with the machine, as bench/results/`name`.json."""
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine(), **result}, indent=1) + "\n")
    return path
