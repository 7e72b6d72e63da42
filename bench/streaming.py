"""Live restyling and the ring, measured: `python bench/streaming.py [PART ...] [--quick]`.

Parts: live, noise, ring, drift. Each adds its result to bench/results/streaming.json.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result

import wavecore as wc
from wavecore.cache import pages_needed
from wavecore.control.streaming import IntakeSettings, NoiseSettings, StreamingSettings
from wavecore.live import LiveFrames
from wavecore.media import LiveSource
from wavecore.metrics import warp_error
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.placement.layers import Ring
from wavecore.rounds import Rounds, StreamBatch, warped_levels
from wavecore.source import to_pixels, to_uint8
from wavecore.sprites.readback import nearest_colour, read_frame
from wavecore.sprites.world import Place, Scene, render, track
from wavecore.trace import Trace

SCENE = Scene("ball", "red", "grass", "right", "slow")
PROMPT = "a blue star over grass"


# -- live ----------------------------------------------------------------------------------


class PacedFrames(LiveSource):
    """Frames of the sprites world at 16 a second."""

    def __init__(self, seconds: float) -> None:
        super().__init__("sprites world", (128, 128))
        self._clip = render(track([SCENE] * 128, Place()))  # the ball is back where it began: it loops
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


# -- noise after motion --------------------------------------------------------------------


def moving(subject: float, camera: float, count: int) -> Any:
    """Frames of a subject and a background that move right at so many pixels a frame."""
    truth, steps = track([SCENE] * count, Place()), np.arange(count)
    centre = np.array(truth.centre)
    centre[:, 0] = (64 + subject * steps) % 128
    return render(replace(truth, centre=centre, pan=np.mod(camera * steps, 128.0)))


SCENES = {
    "static": (0.0, 0.0),
    "subject and camera, 8 px a frame": (8.0, 8.0),
    "subject, 8 px a frame": (8.0, 0.0),
    "camera, 8 px a frame": (0.0, 8.0),
}


def noise(count: int, steps: int, seeds: int) -> dict[str, Any]:
    """Warp error against the source with the noise controller and without, by scene; and of the VAE alone."""
    pipe = wc.load("sprites")
    fixed = StreamingSettings(chunk_frames=1, first_chunk_frames=1)
    motion = replace(fixed, noise=NoiseSettings(highest=0.9, span=0.6, scale=0.5))
    rows = {}
    for name, speeds in SCENES.items():
        source = moving(*speeds, count)
        with torch.inference_mode():
            coded = to_uint8(pipe.model.vae.decode(pipe.model.vae.encode(to_pixels(source)))[0])
        errors: dict[str, list[float]] = {"fixed": [], "motion": []}
        for seed in range(seeds):
            for kind, settings in (("fixed", fixed), ("motion", motion)):
                session = pipe.restyle(
                    iter(source), PROMPT, seed=seed, steps=steps, rounds="stream_batch", streaming=settings
                )
                with session:
                    edited = np.concatenate([group.frames for group in session])
                errors[kind].append(warp_error(source, edited))
        means = {kind: statistics.mean(values) for kind, values in errors.items()}
        rows[name] = {
            **means,
            "vae_alone": warp_error(source, coded),
            "lower_by_percent": 100 * (1 - means["motion"] / means["fixed"]),
        }
    return {"steps": steps, "frames": count, "seeds": seeds, "warp_error": rows}


# -- ring ----------------------------------------------------------------------------------


def big_dit() -> CausalWanDiT:
    """A model whose compute dominates: 8 layers of width 512."""
    config = DiTConfig(
        dim=512, heads=8, layers=8, ffn_dim=2048, text_dim=64, frequency_dim=64, patch=(1, 2, 2)
    )
    torch.manual_seed(0)
    return CausalWanDiT(config).eval().requires_grad_(False)


SIZE = 16, 16, 24  # channels, height, width of a latent: 96 tokens


def rounds_a_second(placement: Any, rules: StreamBatch, rounds: int) -> float:
    """Micro-steps a second in the steady state."""
    handoff = Handoff(warped_levels((1000, 500), 5), 0, SIZE)
    text = placement.encode_text(torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(1)))
    flight: list[Any] = []
    warm, began = 4, 0.0
    for index, round in enumerate(Rounds(rules)):
        if index == warm:
            began = time.perf_counter()
        if index == warm + rounds:
            break
        placement.submit(
            round, handoff.latents(round), handoff.levels_of(round), {s.chunk: text for s in round.slots}
        )
        flight.append(round)
        if len(flight) == placement.depth:
            handoff.advance(flight.pop(0), placement.collect())
    took = time.perf_counter() - began
    for done in flight:
        handoff.advance(done, placement.collect())
    placement.close()
    return rounds / took


def one_process(rounds: int, lag: int) -> float:
    """The whole model in this process, with the batches of a ring of `lag` ranks."""
    torch.set_num_threads(1)
    dit, rules = big_dit(), StreamBatch(steps=2, lag=lag)
    return rounds_a_second(
        LocalPlacement(dit, local_cache(dit, pages_needed(rules), *SIZE[1:])), rules, rounds
    )


def _copy(core: int, barrier: Any, results: Any, rounds: int) -> None:
    os.sched_setaffinity(0, {core})
    barrier.wait()
    results.put(one_process(rounds, 2))


def ring(rounds: int, pairs: int) -> dict[str, Any]:
    """Two ranks on two cores against one, and against two copies of the whole work: the ceiling."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        raise SystemExit("ring: expected two cores, got one")
    rows = []
    context = multiprocessing.get_context("spawn")
    dit, rules = big_dit(), StreamBatch(steps=2, lag=2)
    os.sched_setaffinity(0, {cores[1]})
    two = Ring(dit, 2)  # the other rank inherits the second core; this one goes to the first
    os.sched_setaffinity(0, {cores[0]})
    with two:
        for _ in range(pairs):
            single = one_process(rounds, 2)
            paired = rounds_a_second(two.open(rules, pages_needed(rules), *SIZE[1:]), rules, rounds)
            barrier, results = context.Barrier(2), context.Queue()
            copies = [
                context.Process(target=_copy, args=(core, barrier, results, rounds)) for core in cores[:2]
            ]
            for process in copies:
                process.start()
            both = sum(results.get() for _ in copies)
            for process in copies:
                process.join()
            rows.append({"one": single, "ring": paired, "two_copies": both, "share": paired / both})
    return {
        "rounds": rounds,
        "pairs": rows,
        "share_of_ceiling_percent": 100 * statistics.median(row["share"] for row in rows),
        "speed_over_one": statistics.median(row["ring"] / row["one"] for row in rows),
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
    clip = render(track([SCENE] * 128, Place()))
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
        "noise": lambda: noise(17 if quick else 33, 2, 1 if quick else 3),
        "ring": lambda: ring(10 if quick else 40, 1 if quick else 5),
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
