"""Two ranks of a ring on two cores against one process and against two copies of the work: the ceiling."""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Sequence
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import torch

from wavecore.cache import pages_needed
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.placement.layers import Ring
from wavecore.rounds import Rounds, StreamBatch, warped_levels
from wavecore.trace import Event, Trace

SIZE = 16, 16, 24  # channels, height, width of a latent: 96 tokens
RULES = StreamBatch(steps=2, lag=2)
WARM = 4  # rounds before the ring is full


def big_dit() -> CausalWanDiT:
    """A model whose compute dominates: 8 layers of width 512."""
    config = DiTConfig(
        dim=512, heads=8, layers=8, ffn_dim=2048, text_dim=64, frequency_dim=64, patch=(1, 2, 2)
    )
    torch.manual_seed(0)
    return CausalWanDiT(config).eval().requires_grad_(False)


def rounds_a_second(placement: Any, rounds: int) -> float:
    """Micro-steps a second in the steady state."""
    handoff = Handoff(warped_levels((1000, 500), 5), 0, SIZE)
    text = placement.encode_text(torch.randn(1, 16, 64, generator=torch.Generator().manual_seed(1)))
    flight: list[Any] = []
    began = 0.0
    for index, round in enumerate(Rounds(RULES)):
        if index == WARM:
            began = time.perf_counter()
        if index == WARM + rounds:
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


def one_process(dit: CausalWanDiT, rounds: int) -> float:
    """The whole model in this process, with the batches of the ring."""
    return rounds_a_second(LocalPlacement(dit, local_cache(dit, pages_needed(RULES), *SIZE[1:])), rounds)


class Copies:
    """A process on each core that does the whole work whenever it is asked to."""

    def __init__(self, cores: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._ends = []
        for core in cores:
            here, there = context.Pipe()
            context.Process(target=_copy, args=(core, there), daemon=True).start()
            self._ends.append(here)
        for end in self._ends:
            end.recv()

    def run(self, rounds: int) -> float:
        """Micro-steps a second of all copies together, at the same time."""
        for end in self._ends:
            end.send(rounds)
        return float(sum(end.recv() for end in self._ends))

    def close(self) -> None:
        """End the processes."""
        for end in self._ends:
            end.send(0)


def _copy(core: int, end: Connection) -> None:
    os.sched_setaffinity(0, {core})
    torch.set_num_threads(1)
    dit = big_dit()
    end.send(None)
    while rounds := end.recv():
        end.send(one_process(dit, rounds))


def ring(rounds: int, pairs: int) -> dict[str, Any]:
    """One process, the ring and the copies in turn; the last two change places from pair to pair."""
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("ring: expected two cores, got one")
    rows = []
    dit, trace, copies = big_dit(), Trace(), Copies(cores)
    with Ring(dit, 2, cores=cores, trace=trace) as two:
        for pair in range(pairs):
            row = {"one": one_process(dit, rounds)}
            for kind in ("two_copies", "ring") if pair % 2 else ("ring", "two_copies"):
                if kind == "ring":
                    row[kind] = rounds_a_second(two.open(RULES, pages_needed(RULES), *SIZE[1:]), rounds)
                else:
                    row[kind] = copies.run(rounds)
            rows.append({**row, "share": row["ring"] / row["two_copies"]})
    copies.close()
    last = [event for event in trace.events if event.kind == "round"][-2 * (rounds + WARM) :]
    return {
        "rounds": rounds,
        "pairs": rows,
        "share_of_ceiling_percent": 100 * statistics.median(row["share"] for row in rows),
        "speed_over_one": statistics.median(row["ring"] / row["one"] for row in rows),
        "steady": [steady(last, rank) for rank in range(2)],
        "timeline": timeline(last, 9),
    }


def _of_rank(events: Sequence[Event], rank: int) -> list[Event]:
    return sorted((e for e in events if e.track == f"rank {rank}"), key=lambda event: event.time)


def steady(events: Sequence[Event], rank: int) -> dict[str, float]:
    """Medians of a rank once the ring is full, in ms: its layers, and what lies between two rounds of them.

    Between them are the hop, the wait for the other rank, and on rank 0 noise, embedding and estimates.
    """
    own = _of_rank(events, rank)[WARM:]
    between = [b.time - a.time - a.duration for a, b in pairwise(own)]
    return {
        "layers_ms": 1e3 * statistics.median(event.duration for event in own),
        "between_ms": 1e3 * statistics.median(between),
    }


def timeline(events: Sequence[Event], rounds: int) -> list[dict[str, Any]]:
    """The first rounds of a stream on each rank, in ms from the beginning of the first."""
    began = min(event.time for event in events)
    return [
        {
            "rank": rank,
            "round": event.data["index"],
            "start_ms": 1e3 * (event.time - began),
            "ms": 1e3 * event.duration,
            "slots": event.data["slots"],
        }
        for rank in range(2)
        for event in _of_rank(events, rank)[:rounds]
    ]
