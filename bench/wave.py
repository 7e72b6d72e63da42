"""Wave parallelism on two cores: `python bench/wave.py [--seconds 3] [PART ...]`.

Parts: latency, cost, pair, wide, link. Prints what was measured and adds it to bench/results/wave.json.

The machine's ceiling is what two independent copies of the same forward passes, one a core, gain over one:
virtual cores may share more than memory. It is measured between the runs that are compared with it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result

import wavecore
from wavecore.cache import pages_needed
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import SPIN_US, ReplicaOptions
from wavecore.placement.replicas import Replicas
from wavecore.rounds import Rounds, Rules, Sequential, Wavefront, warped_levels

SIZE = 16  # latent pixels a side: 128 x 128 pixels
CORES = (0, 1)
SHARED = {"anchor_chunks": 0}


def model(scale: int) -> CausalWanDiT:
    """The transformer of sprites; or one of twice its width, four times its size, with random weights."""
    dit = wavecore.load("sprites").model.dit
    if scale == 1:
        return dit
    config = replace(
        dit.config, dim=2 * dit.config.dim, heads=2 * dit.config.heads, ffn_dim=2 * dit.config.ffn_dim
    )
    torch.manual_seed(0)
    return CausalWanDiT(config).eval().requires_grad_(False)


def condition(dit: CausalWanDiT) -> TextContext:
    """A prompt."""
    with torch.inference_mode():
        return dit.encode_text(torch.randn(1, 16, dit.config.text_dim))


def levels(steps: int) -> Any:
    """Noise levels of evenly spaced steps."""
    return warped_levels([1000 * (steps - i) / steps for i in range(steps)], shift=5)


def local_rate(dit: CausalWanDiT, rules: Rules, seconds: float) -> float:
    """Chunks a second on this process's cores and threads, decoding not included."""
    cache = local_cache(dit, pages_needed(rules), SIZE, SIZE)
    placement = LocalPlacement(dit, cache)
    handoff = Handoff(levels(rules.steps), 0, (dit.config.in_channels, SIZE, SIZE))
    text = condition(dit)
    rounds, done, began = Rounds(rules), 0, None
    while began is None or time.perf_counter() - began < seconds:
        round = next(rounds)
        contexts = {slot.chunk: text for slot in round.slots}
        estimates = placement.run(round, handoff.latents(round), handoff.levels, contexts)
        handoff.advance(round, estimates)
        if round.completes is not None:
            done += 1
            if began is None and done == 8:  # full context, warm
                began, done = time.perf_counter(), 0
    return done / (time.perf_counter() - began)


def replica_ticks(replicas: Replicas, dit: CausalWanDiT, rules: Rules, seconds: float) -> list[float]:
    """Times between completed chunks in seconds, of a stream at full width."""
    stream, text, ends = replicas.stream(rules, levels(rules.steps), 0), condition(dit), []
    while len(ends) < 12 or ends[-1] - ends[8] < seconds:
        while stream.wants_chunk:
            stream.enter(0, text)
        if stream.take() is not None:
            ends.append(time.perf_counter())
    stream.close()
    ends = ends[8:]
    return [b - a for a, b in pairwise(ends)]


def copies(scale: int, seconds: float, cores: tuple[int, ...]) -> list[float]:
    """Rates of independent sequential streams, one a core, at the same time."""
    start = time.time() + 9
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--copy", str(scale), str(core), str(start), str(seconds)],
            stdout=subprocess.PIPE,
            text=True,
        )
        for core in cores
    ]
    return [float(process.communicate()[0]) for process in processes]


def copy_main(scale: int, core: int, start: float, seconds: float) -> None:
    """One of `copies`."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    dit = model(scale)
    local_rate(dit, _sequential(1), 0.2)
    time.sleep(max(0.0, start - time.time()))
    print(local_rate(dit, _sequential(1), seconds))


def _sequential(steps: int) -> Sequential:
    return Sequential(steps=steps, history=2, store_history=2, **SHARED)


def _wave(steps: int) -> Wavefront:
    return Wavefront(steps=steps, history=1, store_history=2, **SHARED)


def pair(seconds: float, repeats: int = 1) -> dict[str, Any]:
    """N = 1 on two cores against sequential on one, beside the ceiling."""
    result = {}
    for scale in (1, 4):
        dit = model(scale)
        rates: dict[str, list[float]] = {"one": [], "two": [], "replicas": []}
        with Nursery(dit) as nursery:
            options = ReplicaOptions(cores=CORES)
            with Replicas(
                dit, _wave(1), (dit.config.in_channels, SIZE, SIZE), options, nursery=nursery
            ) as replicas:
                for _ in range(repeats):
                    rates["one"] += copies(scale, seconds, CORES[:1])
                    rates["two"].append(sum(copies(scale, seconds, CORES)))
                    ticks = replica_ticks(replicas, dit, _wave(1), seconds)
                    rates["replicas"].append(len(ticks) / sum(ticks))
        one, two, wave = (statistics.median(rates[name]) for name in ("one", "two", "replicas"))
        result[f"{scale}x"] = {
            "chunks_per_second": rates,
            "ceiling": two / one,
            "gain": wave / one,
            "share_of_ceiling": wave / two,
        }
    return result


def wide(seconds: float) -> dict[str, Any]:
    """N = 4 on two cores against sequential with two threads, and against the ceiling."""
    dit = model(1)
    rates: dict[str, list[float]] = {
        "sequential_two_threads": [],
        "sequential_one_thread": [],
        "replicas": [],
    }
    with Nursery(dit) as nursery:
        latent = dit.config.in_channels, SIZE, SIZE
        with Replicas(dit, _wave(4), latent, nursery=nursery) as replicas:
            for _ in range(3):
                ticks = replica_ticks(replicas, dit, _wave(4), seconds)
                rates["replicas"].append(len(ticks) / sum(ticks))
                for threads, name in ((2, "sequential_two_threads"), (1, "sequential_one_thread")):
                    torch.set_num_threads(threads)
                    rates[name].append(local_rate(dit, _sequential(4), seconds))
                torch.set_num_threads(1)
    ceiling = sum(copies(1, seconds, CORES)) / copies(1, seconds, CORES[:1])[0]
    two, one, wave = (statistics.median(values) for values in (*list(rates.values())[:2], rates["replicas"]))
    return {
        "chunks_per_second": rates,
        "against_two_threads": wave / two,
        "against_one_thread": wave / one,
        "ceiling": ceiling,
        "share_of_ceiling": wave / one / ceiling,
    }


def link(seconds: float) -> dict[str, Any]:
    """Tick p50 of every exchange mode over a slow link, N = 1 on two cores."""
    dit = model(1)
    tokens = 3 * dit.tokens_per_frame(SIZE, SIZE)
    edge = 2 * tokens * dit.config.dim * 4
    result: dict[str, Any] = {"edge_bytes": edge, "layers": dit.config.layers}
    modes = ("sync", "early", "paged")
    with Nursery(dit) as nursery:
        latent = dit.config.in_channels, SIZE, SIZE
        with Replicas(dit, _wave(1), latent, ReplicaOptions(cores=CORES), nursery=nursery) as replicas:
            tick = statistics.median(replica_ticks(replicas, dit, _wave(1), seconds))
        transfer = 0.5 * tick / dit.config.layers  # a link that takes half of a layer's time for an edge
        speed = edge / (transfer * 1e6)
        result |= {"tick_without_link": tick, "transfer_seconds": transfer, "link_bytes_per_us": speed}
        ticks: dict[str, list[float]] = {mode: [] for mode in modes}
        for _ in range(3):
            for mode in modes:
                options = ReplicaOptions(mode=mode, cores=CORES, link_bytes_per_us=speed)  # type: ignore[arg-type]
                with Replicas(dit, _wave(1), latent, options, nursery=nursery) as replicas:
                    ticks[mode] += replica_ticks(replicas, dit, _wave(1), seconds)
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
        reading.add_incoming("writer", memory, memory + FLAG_BYTES)
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
        writing.begin(tick, [(0, tick > 2, [])], [])
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
        scheduler.add_incoming(f"{edge}", base, base + layers * FLAG_BYTES)
    samples, tick, until = [], 0, time.perf_counter() + seconds
    while time.perf_counter() < until:
        tick += 1
        out = [(2 * edge, tick > 2, []) for edge in range(edges)]
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


PARTS = {"latency": latency, "cost": cost, "pair": pair, "wide": wide, "link": link}


def main() -> None:
    """Measure the parts asked for."""
    if sys.argv[1:2] == ["--copy"]:
        scale, core, start, seconds = sys.argv[2:]
        copy_main(int(scale), int(core), float(start), float(seconds))
        return
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="PART", default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    arguments = parser.parse_args()
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
