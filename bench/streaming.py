"""Live restyling and the ring, measured: `python bench/streaming.py [PART ...] [--quick]`.

Parts: live, noise, ring, drift. Each adds its result to bench/results/streaming.json.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result
from streaming_noise import noise
from streaming_ring import ring
from streaming_scenes import PROMPT, looping

import wavecore as wc
from wavecore.control.streaming import IntakeSettings, NoiseSettings, StreamingSettings
from wavecore.live import LiveFrames
from wavecore.media import LiveSource
from wavecore.sprites.readback import nearest_colour, read_frame
from wavecore.trace import Trace

# -- live ----------------------------------------------------------------------------------


class PacedFrames(LiveSource):
    """Frames of the sprites world at 16 a second."""

    def __init__(self, seconds: float) -> None:
        super().__init__("sprites world", (128, 128))
        self._clip = looping()
        self._count, self._closed = round(16 * seconds), threading.Event()

    def __iter__(self) -> Iterator[Any]:
        began = time.monotonic()
        for index in range(self._count):
            wait = began + index / 16 - time.monotonic()
            if self._closed.wait(max(0.0, wait)):
                return
            yield self._clip[index % 128]

    def close(self) -> None:
        self._closed.set()


def live(seconds: float, steps: int) -> dict[str, Any]:
    """A 16 fps source through a warm model; the objective is one second."""
    pipe = wc.load("sprites")
    settings = StreamingSettings(
        chunk_frames=1, first_chunk_frames=1, longest_chunk_frames=3, noise=NoiseSettings(highest=0.9)
    )

    def session(frames: Any, **live: Any) -> Any:
        return pipe.restyle(frames, PROMPT, steps=steps, rounds="stream_batch", streaming=settings, **live)

    with session(iter(np.zeros((9, 128, 128, 3), np.uint8))) as warm:
        list(warm)
    frames = LiveFrames(
        PacedFrames(seconds),
        IntakeSettings(slo=1.0, passes=steps, lengths=(1, 2, 3)),
        lambda first: 1 if first else 4,
    )
    with session(frames, hold=frames.hold, length=frames.length, idle=frames.idle) as stream:
        frames.attach(Trace())
        began = time.monotonic()
        for group in stream:
            frames.shown(group.frames)
        took = time.monotonic() - began
    report = frames.report()
    return {
        **asdict(report),
        "steps": steps,
        "seconds": seconds,
        "frames_per_second": report.emitted / took,
        "late_percent": 100 * report.late / max(1, report.emitted),
    }


# -- drift ---------------------------------------------------------------------------------


def drift(minutes: float, steps: int) -> dict[str, Any]:
    """Latent RMS, colour of the subject and memory over a long stream, as slopes over its length.

    In virtual time: frames are there as soon as they are asked for. The colour is read back from every fourth
    group, and counts where it is that of the prompt.
    """
    import psutil

    pipe, process = wc.load("sprites"), psutil.Process()
    settings = StreamingSettings(
        chunk_frames=1, first_chunk_frames=1, noise=NoiseSettings(highest=0.9), position_limit=48
    )
    clip = looping()
    count = round(16 * 60 * minutes)
    source = (clip[index % 128] for index in range(count))
    session = pipe.restyle(source, PROMPT, steps=steps, rounds="stream_batch", streaming=settings)
    rms, right, memory = [], [], []
    with session:
        for group in session:
            rms.append(float(group.latent.float().square().mean().sqrt()))
            if group.index % 4 == 0:
                right.append(float(nearest_colour(read_frame(group.frames[-1]).colour) == "blue"))
            if group.index % 240 == 120:
                memory.append(process.memory_info().rss / 2**20)

    def slope_percent(values: list[float]) -> float:
        """Change over the whole stream by the straight line, in percent of the mean."""
        x = np.linspace(-0.5, 0.5, len(values))
        return float(100 * np.polyfit(x, values, 1)[0] / np.mean(values))

    settled = memory[1:]  # the first minute loads what is loaded at first use
    return {
        "minutes": minutes,
        "steps": steps,
        "latents": len(rms),
        "latent_rms": statistics.mean(rms),
        "latent_rms_slope_percent": slope_percent(rms),
        "colour_accuracy_percent": 100 * statistics.mean(right),
        "colour_accuracy_slope_percent": slope_percent(right) if any(right) else None,
        "memory_mb": [round(value, 1) for value in memory],
        "memory_slope_percent": slope_percent(settled) if len(settled) > 1 else None,
    }


# -- all of it -----------------------------------------------------------------------------


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--quick", action="store_true", help="short runs, nothing written")
    parser.add_argument("--seconds", type=float, default=300.0, help="of a live stream")
    parser.add_argument("--minutes", type=float, default=30.0, help="of the drift stream")
    arguments = parser.parse_args()
    quick = arguments.quick
    parts = {
        "live": lambda: [live(10.0 if quick else arguments.seconds, steps) for steps in (1, 2)],
        "noise": lambda: noise(17 if quick else 33, (2,) if quick else (1, 2), 1 if quick else 2),
        "ring": lambda: ring(10 if quick else 40, 1 if quick else 6),
        "drift": lambda: drift(0.25 if quick else arguments.minutes, 2),
    }
    for name in arguments.parts or list(parts):
        if name not in parts:
            parser.error(f"PART: expected one of {', '.join(parts)}, got {name}")
        result = parts[name]()
        print(json.dumps({name: result}, indent=1), flush=True)
        if not quick:
            path = RESULTS / "streaming.json"
            known = json.loads(path.read_text()) if path.exists() else {}
            known.pop("machine", None)
            write_result("streaming", {**known, name: result})


if __name__ == "__main__":
    main()
