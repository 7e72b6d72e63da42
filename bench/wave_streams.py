"""Streams to measure: models of two sizes, rates here, over replicas, and of independent copies."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from typing import Any

import torch

import wavecore
from wavecore.cache import pages_needed
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.placement.local import Order
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


def local_rate(dit: CausalWanDiT, rules: Rules, seconds: float, order: Order = "batched") -> float:
    """Chunks a second on this process's cores and threads, decoding not included."""
    cache = local_cache(dit, pages_needed(rules), SIZE, SIZE)
    return placement_rate(LocalPlacement(dit, cache, order), dit, rules, seconds)


def placement_rate(placement: Any, dit: CausalWanDiT, rules: Rules, seconds: float) -> float:
    """Chunks a second of a stream of full context."""
    handoff = Handoff(levels(rules.steps), 0, (dit.config.in_channels, SIZE, SIZE))
    text = condition(dit)
    rounds, done, began = Rounds(rules), 0, None
    while True:
        round = next(rounds)
        contexts = {slot.chunk: text for slot in round.slots}
        placement.submit(round, handoff.latents(round), handoff.levels, contexts)
        handoff.advance(round, placement.collect())
        if round.completes is None:
            continue
        done += 1
        if began is None and done == 8:  # full context, warm
            began, done = time.perf_counter(), 0
        elif began is not None and (elapsed := time.perf_counter() - began) >= seconds:
            return done / elapsed


def replica_ticks(replicas: Replicas, dit: CausalWanDiT, rules: Rules, seconds: float) -> list[float]:
    """Times between completed chunks in seconds, of a stream at full width."""
    stream, text, ends = replicas.stream(rules, levels(rules.steps), 0), condition(dit), []
    while len(ends) < 12 or ends[-1] - ends[8] < seconds:
        while stream.wants_chunk:
            stream.enter(0, text)
        if stream.take() is not None:
            ends.append(time.perf_counter())
    stream.end()
    while stream.take() is not None:  # nothing of it runs beside what is measured next
        pass
    ends = ends[8:]
    return [b - a for a, b in pairwise(ends)]


def rate(ticks: list[float]) -> float:
    """Chunks a second."""
    return len(ticks) / sum(ticks)


class Copies:
    """Independent streams with one thread, a process a core, which run when they are told to.

    Parameters
    ----------
    scale : int
        Of the model.
    kind : "sequential" or "wave"
        Rounds; those of the wave run slot by slot, the passes that replicas make.
    steps : int
    """

    def __init__(self, scale: int, kind: str, steps: int) -> None:
        self._processes = [
            subprocess.Popen(
                [sys.executable, __file__, str(scale), str(core), kind, str(steps)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for core in CORES
        ]
        self.rates(0.1)  # loaded

    def rates(self, seconds: float, count: int = len(CORES)) -> list[float]:
        """Chunks a second of the first `count` of them, all at the same time."""
        chosen = self._processes[:count]
        for process in chosen:
            assert process.stdin is not None
            print(seconds, file=process.stdin, flush=True)
        return [float(process.stdout.readline()) for process in chosen if process.stdout is not None]

    def __enter__(self) -> Copies:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.communicate()


def copy_main(scale: int, core: int, kind: str, steps: int) -> None:
    """One of `Copies`."""
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    dit = model(scale)
    for line in sys.stdin:
        if kind == "wave":
            rate = local_rate(dit, wave(steps), float(line), "slots")
        else:
            rate = local_rate(dit, sequential(steps), float(line))
        print(rate, flush=True)


def sequential(steps: int) -> Sequential:
    return Sequential(steps=steps, history=2, store_history=2, **SHARED)


def wave(steps: int) -> Wavefront:
    return Wavefront(steps=steps, history=1, store_history=2, **SHARED)


if __name__ == "__main__":
    copy_main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
