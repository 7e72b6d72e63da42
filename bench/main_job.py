"""Speed and memory of the main job: `python bench/main_job.py [--quick]`.

Prints a table and writes bench/results/main_job.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from machine import write_result

PROMPT = "a red ball moving left over sand"


def repeat(measure: Callable[[], float], times: int) -> dict[str, float]:
    """Median and range of repeated measurements."""
    values = [measure() for _ in range(times)]
    return {"median": statistics.median(values), "min": min(values), "max": max(values), "runs": times}


def import_seconds() -> float:
    """Time of `import wavecore` in a process that has imported torch."""
    code = "import torch, time; t = time.perf_counter(); import wavecore; print(time.perf_counter() - t)"
    return float(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    )


def cold_start_seconds() -> float:
    """Wall time of the command that makes a clip of 5 s, interpreter start and imports included."""
    with tempfile.TemporaryDirectory() as folder:
        out = str(Path(folder) / "clip.mp4")
        began = time.perf_counter()
        command = [
            sys.executable,
            "-m",
            "wavecore",
            "generate",
            PROMPT,
            "--seconds",
            "5",
            "--output-path",
            out,
        ]
        subprocess.run(command, capture_output=True, check=True)
        return time.perf_counter() - began


def steady_rate(rounds: str, seconds: float = 8.0) -> float:
    """Frames a second of a warm stream, decode included, media encoding not."""
    import wavecore

    pipe = wavecore.load("sprites")
    with pipe.session(PROMPT, rounds=rounds, steps=4) as session:  # type: ignore[arg-type]
        for _ in islice(session, 16):
            pass
        frames, began = 0, time.perf_counter()
        while time.perf_counter() - began < seconds:
            frames += len(next(session).frames)
        return frames / (time.perf_counter() - began)


MEMORY = """
import json, resource, sys
import psutil, wavecore
prompt, minutes, process = sys.argv[1], float(sys.argv[2]), psutil.Process()
samples = []
with wavecore.load("sprites").session(prompt, seconds=60 * minutes) as session:
    for group in session:
        if group.index % 240 == 120:  # once a minute of video
            samples.append((group.pts / 60, process.memory_info().rss / 2**20))
print(json.dumps({"peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "samples": samples}))
"""


def memory(minutes: float) -> dict[str, Any]:
    """Peak of a stream of `minutes`, and growth a minute of video after the first."""
    command = [sys.executable, "-c", MEMORY, PROMPT, str(minutes)]
    result = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    samples = [(t, mb) for t, mb in result["samples"] if t > 1] or result["samples"]
    (t0, first), (t1, last) = samples[0], samples[-1]
    growth = (last - first) / (t1 - t0) if t1 > t0 else 0.0
    return {"peak_mb": result["peak_mb"], "growth_mb_per_minute": growth, "minutes": minutes}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter runs")
    quick = parser.parse_args().quick
    times = 2 if quick else 5
    result: dict[str, Any] = {
        "import_seconds_over_torch": repeat(import_seconds, times),
        "generate_5s_cold_seconds": repeat(cold_start_seconds, times),
        "frames_per_second": {
            rounds: repeat(lambda rounds=rounds: steady_rate(rounds, 2.0 if quick else 8.0), times)
            for rounds in ("wavefront", "sequential", "stream_batch")
        },
        "memory": memory(1.0 if quick else 10.0),
        "included": "128x128, 4 steps, placement local, decode; cold start also imports and H.264 encoding",
    }
    print(json.dumps(result, indent=1))
    if not quick:
        print(write_result("main_job", result))


if __name__ == "__main__":
    main()
