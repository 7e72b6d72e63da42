"""What the controller does in virtual time, and how fast it is, for bench/speculative.py."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from wavecore.control.simulate import (
    IsolatedArrivals,
    PoissonArrivals,
    Scenario,
    WaveCosts,
    laws,
    plots,
    simulate,
)
from wavecore.control.speculative import Controller, RetainedPrefix, UnitCosts
from wavecore.control.speculative import events as ev

LATENTS = 12


def decisions(quick: bool) -> dict[str, Any]:
    """The events of a simulated stream, told to a fresh controller: all at once, and one by one."""
    scenario = Scenario(
        adapter=RetainedPrefix(20), costs=UnitCosts(denoise=1.0, decode=0.02), group_seconds=Fraction(1, 4)
    )
    told: list[ev.Event] = []
    handle = Controller.handle

    def listen(self: Controller, event: ev.Event) -> list[ev.Output]:
        told.append(event)
        return handle(self, event)

    Controller.handle = listen  # type: ignore[method-assign]
    try:
        simulate(scenario, PoissonArrivals(500 if quick else 1500, 0.4, 0))
    finally:
        Controller.handle = handle  # type: ignore[method-assign]
    rates = []
    for _ in range(15):
        controller = scenario.controller()
        began = time.process_time()
        for event in told:
            controller.handle(event)
        rates.append(len(told) / (time.process_time() - began))
    each = np.empty((5, len(told)))
    for row in each:
        controller = scenario.controller()
        for index, event in enumerate(told):
            began = time.perf_counter_ns()
            controller.handle(event)
            row[index] = (time.perf_counter_ns() - began) / 1e3
    steady = each.min(0)  # an event repeats; what interrupts the process does not
    return {
        "events": len(told),
        "events_per_cpu_second": float(np.median(rates)),
        "events_per_cpu_second_best": max(rates),
        "event_us": {f"p{q}": float(np.percentile(steady, q)) for q in (50, 99, 99.9)},
        "event_us_p99_single_pass": float(np.percentile(each[0], 99)),
    }


def devices(quick: bool) -> dict[str, Any]:
    """Wan 1.3B, 4 steps, chunks of 3 latents, K = 12, at timings published for Wave Forcing.

    A pass takes 48.7 ms with one chunk of context and 15 ms more with each further one; a round of the wave,
    which is as long as its slowest slot, 153.4 ms. Isolated updates, and updates at 0.8 a second.
    """
    count = 400 if quick else 4000
    alone = 0.0487 + 6 * 0.015
    chunk = 5 * alone
    costs: dict[str, tuple[UnitCosts | WaveCosts, bool, float]] = {
        "sequential, one device": (UnitCosts(denoise=4 * alone - chunk / 3, decode=chunk / 3), False, chunk),
    }
    wave = WaveCosts(steps=4, chunk_latents=3, round=0.1534)
    costs["wave, a device a slot"] = wave, False, wave.round
    costs["wave that a prompt can cut"] = wave, True, wave.round
    rows = {}
    for name, (of_calls, cut, seconds) in costs.items():
        scenario = Scenario(
            adapter=RetainedPrefix(LATENTS), costs=of_calls, group_seconds=Fraction(1, 4), cut=cut
        )
        row: dict[str, Any] = {
            "seconds_to_first_chunk": scenario.generation,
            "frames_per_second": 12 / seconds,
        }
        for kind, arrivals in (
            ("isolated", IsolatedArrivals(count, scenario.period, 0)),
            ("poisson", PoissonArrivals(count, 0.8, 0)),
        ):
            result = simulate(scenario, arrivals)
            response = result.seconds("response")
            row[kind] = {
                "median_response": float(np.median(response)),
                "mean_response": float(response.mean()),
                "p95_response": float(np.percentile(response, 95)),
                "mean_wait": float(result.seconds("wait").mean()),
                "shown": len(response),
                "groups_missing": result.totals.missed_groups,
                "amplification": result.totals.amplification,
            }
        rows[name] = row
    return rows


def lengths(quick: bool) -> list[dict[str, Any]]:
    """Response of the bidirectional adapter `latent-input` at several K with C made equal."""
    return laws.chunk_lengths(400 if quick else 4000, 0)


def pictures(folder: Path) -> None:
    """Latency and cost at T = 5 s, C = 1.6 s, K = 20."""
    scenario = Scenario(
        adapter=RetainedPrefix(20), costs=UnitCosts(denoise=1.6), group_seconds=Fraction(1, 4)
    )
    arrivals = [IsolatedArrivals(1000, 5.0, 0) for _ in range(2)]
    results = [simulate(s, a) for s, a in zip((scenario, scenario.chunked()), arrivals, strict=True)]
    plots.latency(folder / "speculative_latency.png", *results)
    rates = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
    measured = [simulate(scenario, PoissonArrivals(200, r, 0)).totals.amplification for r in rates]
    plots.cost(folder / "speculative_cost.png", rates, measured, 20, 0.25)
