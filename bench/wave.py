"""Wave parallelism on two cores: `python bench/wave.py [--seconds 3] [PART ...]`.

Parts: latency, cost, pair, wide, link, baselines, plan, equal. Prints what was measured and adds it to
bench/results/wave.json.

The machine's ceiling is what two independent copies of the same forward passes, one a core, gain over one:
virtual cores may share more than memory. It is measured between the runs that are compared with it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result
from wave_streams import (
    CORES,
    SIZE,
    Copies,
    local_rate,
    model,
    placement_rate,
    rate,
    replica_ticks,
    sequential,
    wave,
)

import wavecore
from wavecore.cache import pages_needed
from wavecore.pipeline import Pipeline
from wavecore.placement import LocalPlacement
from wavecore.placement.exchange import EXCHANGE_MODES, TRANSPORTS
from wavecore.placement.local import Order
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import SPIN_US, ReplicaOptions
from wavecore.placement.replicas import Replicas
from wavecore.placement.sequence import SequenceOptions, SequencePlacement
from wavecore.placement.sequence.group import SEQUENCE_MODES
from wavecore.plan import plans
from wavecore.plan.measure import measure

REPEATS = 9  # of every run that is compared with another, in turn


def pair(seconds: float) -> dict[str, Any]:
    """N = 1 on two cores against sequential on one, beside the ceiling."""
    result = {}
    for scale in (1, 4):
        dit = model(scale)
        latent = dit.config.in_channels, SIZE, SIZE
        rates: dict[str, list[float]] = {"one": [], "two": [], "replicas": []}
        options = ReplicaOptions(cores=CORES)
        with (
            Copies(scale, "sequential", 1) as copies,
            Replicas(dit, wave(1), latent, options) as replicas,
        ):
            rates["two"].append(sum(copies.rates(seconds)))
            for _ in range(REPEATS):
                rates["replicas"].append(rate(replica_ticks(replicas, dit, wave(1), seconds)))
                rates["two"].append(sum(copies.rates(seconds)))
                rates["one"] += copies.rates(seconds, 1)
        result[f"{scale}x"] = _shares(rates)
    return result


def wide(seconds: float) -> dict[str, Any]:
    """N = 4 on two cores against sequential with two threads, and against the ceiling of its own passes."""
    dit = model(1)
    latent = dit.config.in_channels, SIZE, SIZE
    rates: dict[str, list[float]] = {"one": [], "two": [], "replicas": [], "sequential_two_threads": []}
    with (
        Copies(1, "wave", 4) as copies,
        Replicas(dit, wave(4), latent, ReplicaOptions(cores=CORES)) as replicas,
    ):
        rates["two"].append(sum(copies.rates(seconds)))
        for _ in range(REPEATS):
            rates["replicas"].append(rate(replica_ticks(replicas, dit, wave(4), seconds)))
            rates["two"].append(sum(copies.rates(seconds)))
            torch.set_num_threads(2)
            rates["sequential_two_threads"].append(local_rate(dit, sequential(4), seconds))
            torch.set_num_threads(1)
            rates["one"] += copies.rates(seconds, 1)
    gains = [a / b for a, b in zip(rates["replicas"], rates["sequential_two_threads"], strict=True)]
    return _shares(rates) | {"against_two_threads": statistics.median(gains)}


def _shares(rates: dict[str, list[float]]) -> dict[str, Any]:
    """What replicas gain, run by run, over what was measured just before and after: this machine drifts."""
    around = [(a + b) / 2 for a, b in pairwise(rates["two"])]
    shares = [a / b for a, b in zip(rates["replicas"], around, strict=True)]
    low, middle, high = statistics.quantiles(shares, n=4)
    return {
        "chunks_per_second": rates,
        "ceiling": statistics.median(a / b for a, b in zip(around, rates["one"], strict=True)),
        "gain": statistics.median(a / b for a, b in zip(rates["replicas"], rates["one"], strict=True)),
        "share_of_ceiling": middle,
        "share_of_ceiling_quartiles": [low, high],
    }


def plan(seconds: float) -> dict[str, Any]:
    """Tick of the planner's wavefront on two cores: predicted from passes timed here, and measured."""
    pipe = wavecore.load("sprites")
    dit, result = pipe.model.dit, {}
    with Nursery(dit) as nursery:
        for steps in (1, 4):
            rules, latent = wave(steps), (dit.config.in_channels, SIZE, SIZE)
            rows = []
            for _ in range(REPEATS):
                measured = measure(pipe.model, pipe.size, seconds / 2)
                found = plans(
                    measured.model, measured.device, len(CORES), steps, pipe.size, rules, measured.units
                )
                best = next(plan for plan in found if plan.result is not None)
                options = ReplicaOptions(ranks=best.ranks, cores=CORES)
                with Replicas(dit, rules, latent, options, nursery=nursery) as replicas:
                    ticks = replica_ticks(replicas, dit, rules, seconds)
                rows.append((best.name, best.tick, 1 / rate(ticks)))
            result[f"{steps} steps"] = {
                "plans": [name for name, _, _ in rows],
                "predicted": [predicted for _, predicted, _ in rows],
                "measured": [tick for _, _, tick in rows],
                "predicted_over_measured": statistics.median(a / b for _, a, b in rows),
            }
    return result


def baselines(seconds: float) -> dict[str, Any]:
    """Chunks a second of sequence parallelism over two processes, N = 4, beside replicas."""
    dit = model(1)
    latent = dit.config.in_channels, SIZE, SIZE
    rates: dict[str, list[float]] = {"replicas": [], "ulysses": [], "ring": []}
    with Nursery(dit) as nursery:
        for _ in range(REPEATS):
            with Replicas(dit, wave(4), latent, nursery=nursery) as replicas:
                rates["replicas"].append(rate(replica_ticks(replicas, dit, wave(4), seconds)))
            for mode in SEQUENCE_MODES:
                options = SequenceOptions(ranks=2, mode=mode, cores=CORES)  # type: ignore[arg-type]
                placement = SequencePlacement(dit, options, nursery)
                rules = sequential(4)
                placement.open(rules, pages_needed(rules), SIZE, SIZE)
                rates[mode].append(placement_rate(placement, dit, rules, seconds))
                placement.close()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "chunks_per_second": rates,
        **{f"replicas_against_{mode}": medians["replicas"] / medians[mode] for mode in SEQUENCE_MODES},
    }


def equal(seconds: float) -> dict[str, Any]:
    """Frames of replicas and of one device, N = 1, 2, 4, 5, M = 8: every exchange mode and transport.

    With a rank a stage, and with two ranks that take the stages in turn.
    """
    pipe = wavecore.load("sprites")
    frames = 1 + pipe.model.vae.temporal_factor * (8 * pipe.model.defaults.chunk_frames - 1)
    result: dict[str, Any] = {"frames": frames}
    with Nursery(pipe.model.dit) as nursery:
        for steps in (1, 2, 4, 5):
            here = {order: _clip(pipe, steps, frames, order=order) for order in ("slots", "batched")}
            same = []
            for mode, transport, ranks in product(EXCHANGE_MODES, TRANSPORTS, sorted({2, steps + 1})):
                options = ReplicaOptions(ranks=ranks, mode=mode, transport=transport)  # type: ignore[arg-type]
                latent = pipe.model.dit.config.in_channels, SIZE, SIZE
                rules = pipe.rules("wavefront", steps)
                with Replicas(pipe.model.dit, rules, latent, options, nursery=nursery) as replicas:
                    there = _clip(pipe, steps, frames, replicas=replicas)
                same.append(all(map(torch.equal, there, here["slots"])))
            difference = float((here["slots"][1] - here["batched"][1]).abs().max())
            result[f"{steps} steps"] = {
                "same_frames_and_latents": f"{sum(same)} of {len(same)}",
                "latents_from_batched": difference,
            }
    return result


def _clip(
    pipe: Pipeline, steps: int, frames: int, order: Order = "batched", replicas: Replicas | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames and latents of a clip."""
    placement = "local" if replicas is None else "replicas"
    with pipe.session(
        "a red ball rolling left over grass",
        steps=steps,
        num_frames=frames,
        rounds="wavefront",
        placement=placement,
        replicas=replicas,
    ) as session:
        if isinstance(session._placement, LocalPlacement):
            session._placement.order = order
        groups = list(session)
    clip = np.concatenate([group.frames for group in groups])
    return torch.from_numpy(clip), torch.stack([group.latent for group in groups])


def link(seconds: float) -> dict[str, Any]:
    """Tick p50 of every exchange mode over a slow link, N = 1 on two cores."""
    dit = model(1)
    tokens = 3 * dit.tokens_per_frame(SIZE, SIZE)
    edge = 2 * tokens * dit.config.dim * 4
    result: dict[str, Any] = {"edge_bytes": edge, "layers": dit.config.layers}
    modes = ("sync", "early", "paged")
    with Nursery(dit) as nursery:
        latent = dit.config.in_channels, SIZE, SIZE
        with Replicas(dit, wave(1), latent, ReplicaOptions(cores=CORES), nursery=nursery) as replicas:
            tick = statistics.median(replica_ticks(replicas, dit, wave(1), seconds))
        transfer = 0.5 * tick / dit.config.layers  # a link that takes half of a layer's time for an edge
        speed = edge / (transfer * 1e6)
        result |= {"tick_without_link": tick, "transfer_seconds": transfer, "link_bytes_per_us": speed}
        ticks: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(3):
            for mode in modes:
                options = ReplicaOptions(mode=mode, cores=CORES, link_bytes_per_us=speed)  # type: ignore[arg-type]
                with Replicas(dit, wave(1), latent, options, nursery=nursery) as replicas:
                    ticks[mode] += replica_ticks(replicas, dit, wave(1), seconds)
    result |= {f"{mode}_p50": statistics.median(values) for mode, values in ticks.items()}
    result["paged_below_sync"] = 1 - result["paged_p50"] / result["sync_p50"]
    return result


def latency(seconds: float) -> dict[str, Any]:
    """From the write of a counter to the return of the wait for it in another process."""
    from wavecore._native import FLAG_BYTES, HostDriver, Scheduler

    driver = HostDriver(spin_us=SPIN_US)
    memory = driver.allocate(4 * FLAG_BYTES)
    count = int(min(20_000, seconds / 200e-6))
    ready, writer = os.pipe()
    child = os.fork()
    if not child:
        os.sched_setaffinity(0, {CORES[1]})
        reading = Scheduler(driver, 1, 2, 20.0, True)
        reading.add_incoming("writer", memory)
        reading.add_credit(memory + FLAG_BYTES)
        waits = []
        for tick in range(1, count + 1):
            reading.begin(tick, [], [(0, [])])
            reading.gate(0)
            reading.attended(0)
            waits += [
                (e - w) * 1e6 for step, _, _, _, b, e, w in reading.take_records() if step == "wait" and b < w
            ]
        cuts = statistics.quantiles(waits, n=100)
        report = {"median_us": cuts[49], "p99_us": cuts[98], "waits": len(waits)}
        os.write(writer, json.dumps(report).encode())
        os._exit(0)
    os.sched_setaffinity(0, {CORES[0]})
    writing = Scheduler(driver, 1, 2, 20.0)
    writing.add_outgoing("reader", memory, memory + FLAG_BYTES)
    for tick in range(1, count + 1):
        until = time.perf_counter() + 150e-6
        while time.perf_counter() < until:
            pass
        writing.begin(tick, [(0, [])], [])
        writing.publish(0)
    result = json.loads(os.read(ready, 4096))
    os.waitpid(child, 0)
    os.sched_setaffinity(0, set(CORES))
    return result


def cost(seconds: float) -> dict[str, Any]:
    """What the scheduler takes for a layer and an edge, nothing copied and nothing waited for."""
    from wavecore._native import FLAG_BYTES, HostDriver, Scheduler

    layers, edges = 30, 4
    driver = HostDriver()
    memory = driver.allocate(2 * edges * layers * FLAG_BYTES)
    scheduler = Scheduler(driver, layers, 2, 20.0)
    for edge in range(edges):  # to itself: what it publishes is what it waits for
        base = memory + 2 * edge * layers * FLAG_BYTES
        scheduler.add_outgoing(f"{edge}", base, base + layers * FLAG_BYTES)
        scheduler.add_incoming(f"{edge}", base)
        scheduler.add_credit(base + layers * FLAG_BYTES)
    samples, tick, until = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        tick += 1
        out = [(2 * edge, []) for edge in range(edges)]
        came = [(2 * edge + 1, []) for edge in range(edges)]
        began = time.perf_counter()
        scheduler.begin(tick, out, came)
        for layer in range(layers):
            scheduler.acquire(layer)
            scheduler.publish(layer)
            scheduler.gate(layer)
            scheduler.attended(layer)
        samples.append((time.perf_counter() - began) / layers / edges * 1e6)
    return {"median_us": statistics.median(samples), "layers": layers, "edges": edges}


PARTS = {
    "latency": latency,
    "cost": cost,
    "pair": pair,
    "wide": wide,
    "link": link,
    "baselines": baselines,
    "plan": plan,
    "equal": equal,
}


def main() -> None:
    """Measure the parts asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=2.0, help="of each run")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(PARTS):
        parser.error(f"PART: expected some of {', '.join(PARTS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    path = RESULTS / "wave.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result.pop("machine", None)
    for name in arguments.parts:
        result[name] = PARTS[name](arguments.seconds)
        print(name, json.dumps(result[name], indent=1), flush=True)
    write_result("wave", result)


if __name__ == "__main__":
    main()
