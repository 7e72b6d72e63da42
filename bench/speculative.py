"""The speculative controller: `python bench/speculative.py PART ... [--quick]`.

`response`: sprites in real time, updates at random phases, and by turns a fixed-chunk stream of the same K.
`orders`: sequential order, a wave, a wave that a prompt can cut: processor time and simulated response.

`decisions`: events a second, and time of one event, of the controller alone.
`devices`: simulated response at the published timings of Wan 1.3B on one and on several devices.
`joint`: the bidirectional model (--model) in real time, K as trained against a short window.
`pictures`: those of docs/speculative.md, the timeline from the event log of a real stream.

Results are merged into bench/results/speculative.json.
"""

from __future__ import annotations

import argparse
import json
import pickle
import random
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
from machine import RESULTS, write_result

import wavecore as wc
from wavecore.control.clock import SECOND
from wavecore.control.simulate import IsolatedArrivals, PoissonArrivals, Scenario, plots, simulate
from wavecore.control.speculative import (
    Controller,
    QuantileEstimator,
    RetainedPrefix,
    Settings,
    UnitCosts,
    UpdateRecord,
)
from wavecore.control.speculative import events as ev
from wavecore.interactive.predictions import Made, Prediction, Predictions
from wavecore.interactive.replay import read_recording
from wavecore.interactive.session import SpeculativeSession
from wavecore.interactive.speculation import Parts, Speculation, make_parts
from wavecore.trace import Trace

LATENTS = 12
SUBJECTS = ("a red ball", "a blue star", "a green box", "a white cross", "a yellow triangle")
MOTIONS = ("moving left over grass", "moving up over sand", "at rest on water", "moving right at night")


class FixedChunks:
    """K latents as one indivisible group: what a chunked stream hands over together."""

    def __init__(self, inner: Any, latents: int) -> None:
        self._inner, self._latents = inner, latents
        self.predictions = Predictions()

    def call(self, position: int, groups: int, trimmed: int, prompt: str):
        first = position * self._latents
        for _ in self._inner.call(first, self._latents, 0, prompt):
            pass
        made = [self._inner.predictions[first + m] for m in range(self._latents)]
        frames = np.concatenate([p.frames for p in made])
        self.predictions[position] = Prediction(made[-1].latent, frames, (), prompt)
        yield Made(position, ev.COMPLETE)

    def splice(self, position: int, groups: int, prompt: str) -> bool:
        return False

    def cut(self, position: int) -> Any:
        return self.predictions.cut(position), self._inner.cut(position * self._latents)

    def restore(self, shelf: Any) -> None:
        self.predictions.restore(shelf[0])
        self._inner.restore(shelf[1])

    def discard(self, shelf: Any) -> None:
        self._inner.discard(shelf[1])

    def release(self, before: int) -> None:
        self.predictions.forget(before)
        self._inner.release(before * self._latents)

    def close(self) -> None:
        self._inner.close()


def fixed_chunk_session(pipe: Any, rounds: str, prompt: str, trace: Trace) -> SpeculativeSession:
    """The same model, K and clock; a new prompt takes effect at the next chunk, which starts at nT - C."""
    speculation = Speculation(latents=LATENTS)
    inner = make_parts(pipe.model, speculation, pipe.rules(rounds, 4), pipe.levels(4), 0, pipe.size, pipe.fps)
    stride = pipe.model.vae.temporal_factor
    frame = 1 / Fraction(pipe.fps)
    settings = Settings(
        adapter=RetainedPrefix(1),
        group_seconds=LATENTS * stride * frame,
        first_group_seconds=((1 + (LATENTS - 1) * stride) * frame,),
    )
    controller = Controller(settings, QuantileEstimator(1))
    parts = Parts(settings.adapter, controller, FixedChunks(inner.generator, LATENTS))
    return SpeculativeSession(parts, prompt, pipe.fps, stride * LATENTS, None, speculation, {}, trace)


@dataclass
class Segment:
    """A stretch of a stream and what became of its updates."""

    records: list[UpdateRecord] = field(default_factory=list)
    changed: int = 0
    due: int = 0
    missing: int = 0
    calls: int = 0
    amplification: float = 0.0


def run_segment(session: SpeculativeSession, seconds: float, gaps: tuple[float, float], seed: int) -> Segment:
    """Play for `seconds`, with updates at random times; check every frame against the announced horizon.

    With `gaps` (0, 0) the next update comes at a random phase of 3 s after the one before was shown.
    """
    random_number = random.Random(seed)
    tickets: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(random_number.uniform(*gaps) if gaps[1] else random_number.uniform(0, 3.0)):
            prompt = f"{random_number.choice(SUBJECTS)} {random_number.choice(MOTIONS)}"
            tickets.append(session.update(prompt))
            if not gaps[1]:
                tickets[-1].future.exception()

    segment = Segment()
    announced: dict[int, bytes] = {}
    asking = threading.Thread(target=ask, daemon=True)
    began = time.perf_counter()
    with session:
        predictions = session._delivery._predictions
        for group in session:
            if group.index == 1:
                asking.start()
                began = time.perf_counter()
            if announced.setdefault(group.index, group.frames.tobytes()) != group.frames.tobytes():
                segment.changed += 1
            for position in predictions:
                if group.index < position < session.horizon.locked and position in predictions:
                    announced.setdefault(position, predictions[position].frames.tobytes())
            if group.index > 1 and time.perf_counter() - began > seconds:
                break
        over.set()
        asking.join(0.1)
    totals = session.totals
    segment.records = [t.result(5) for t in tickets]
    segment.due = totals.played + totals.bootstrap_played + totals.missed_groups
    segment.missing, segment.calls = totals.missed_groups, totals.calls
    segment.amplification = totals.amplification
    return segment


def summary(segments: list[Segment], group: float) -> dict[str, Any]:
    """Latencies of the displayed updates in seconds, and the bars that follow from them."""
    records = [r for s in segments for r in s.records if r.outcome == "displayed"]

    def quantiles(part: str) -> dict[str, float]:
        values = np.array([getattr(r, part) for r in records]) / SECOND
        return {"median": float(np.median(values)), "mean": float(values.mean()), **{
            f"p{q}": float(np.percentile(values, q)) for q in (5, 95)
        }}  # fmt: skip

    outcomes = [r.outcome for s in segments for r in s.records]
    parts = {name: quantiles(name) for name in ("response", "wait", "generation", "alignment")}
    gap = max(abs(r.wait + r.generation + r.alignment - r.response) for r in records) / 1e6
    due, missing = sum(s.due for s in segments), sum(s.missing for s in segments)
    return {
        "updates": len(outcomes),
        "displayed": len(records),
        "superseded": outcomes.count("superseded"),
        **parts,
        "bar_c_plus_group_plus_50ms": parts["generation"]["median"] + group + 0.05,
        "frames_changed_before_horizon": sum(s.changed for s in segments),
        "groups_due": due,
        "groups_missing": missing,
        "underrun_rate": missing / due,
        "largest_gap_of_r_c_q_ms": gap,
        "amplification": float(np.mean([s.amplification for s in segments])),
    }


def response(quick: bool, kept: Path | None = None) -> dict[str, Any]:
    """One pair of stretches; with `kept` it joins those of earlier runs, so that none of them is long."""
    pipe = wc.load("sprites")
    speculative, chunked = pickle.loads(kept.read_bytes()) if kept and kept.exists() else ([], [])
    seed, session = len(speculative), start(pipe, "wavefront")
    speculative.append(run_segment(session, 8 if quick else 33, (0.4, 0.8), seed))
    baseline = fixed_chunk_session(pipe, "wavefront", SUBJECTS[0], Trace())
    chunked.append(run_segment(baseline, 8 if quick else 19, (0, 0), seed))
    if kept:
        kept.write_bytes(pickle.dumps((speculative, chunked)))
    group = pipe.model.vae.temporal_factor / pipe.fps
    return {
        "latents": LATENTS,
        "speculative": summary(speculative, group),
        "fixed_chunk": summary(chunked, group * LATENTS),
    }


def start(pipe: Any, rounds: str, **more: Any) -> SpeculativeSession:
    more = {"latents": LATENTS, **more}
    return pipe.session(
        SUBJECTS[0], rounds=rounds, control="speculative", speculation=Speculation(**more), trace=Trace()
    )


def orders(quick: bool) -> dict[str, Any]:
    """Calls of each order by turns, in processor seconds, and the response simulated with these times.

    Other work on the machine delays a stream in real time, but hardly changes the processor time of a call.
    """
    pipe = wc.load("sprites")
    variants = {"sequential": ("sequential", False), "wave": ("wavefront", False), "cut": ("wavefront", True)}
    group = pipe.model.vae.temporal_factor / pipe.fps
    generators = {}
    for name, (rounds, cut) in variants.items():
        chosen, rules = Speculation(latents=LATENTS, cut=cut), pipe.rules(rounds, 4)
        parts = make_parts(pipe.model, chosen, rules, pipe.levels(4), 0, pipe.size, pipe.fps)
        generators[name] = parts.generator
    firsts: dict[str, list[float]] = {name: [] for name in variants}
    wholes: dict[str, list[float]] = {name: [] for name in variants}
    for turn in range(4 if quick else 16):
        for name, generator in generators.items():
            generator.release(turn * LATENTS)
            began, first = time.process_time(), 0.0
            for made in generator.call(turn * LATENTS, LATENTS, 0, SUBJECTS[0]):
                if made.parts & ev.PIXELS and not first:
                    first = time.process_time() - began
            if turn > 1:  # the context is full
                firsts[name].append(first)
                wholes[name].append(time.process_time() - began)
    rows = {}
    for name in variants:
        first, whole = float(np.median(firsts[name])), float(np.median(wholes[name]))
        decode = (whole - first) / LATENTS
        costs = UnitCosts(denoise=first - decode, decode=decode)
        scenario = Scenario(adapter=RetainedPrefix(LATENTS), costs=costs, group_seconds=Fraction(1, 4))
        simulated = simulate(scenario, IsolatedArrivals(2000, scenario.period, 0)).seconds("response")
        rows[name] = {
            "first_group_cpu_seconds": first,
            "call_cpu_seconds": whole,
            "frames_per_cpu_second": LATENTS * group * pipe.fps / whole,
            "simulated_median_response": float(np.median(simulated)),
            "simulated_mean_response": float(simulated.mean()),
        }
    return rows


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
    which is as long as its slowest slot, 153.4 ms.
    """
    count = 400 if quick else 4000
    alone = 0.0487 + 6 * 0.015
    pace = {"sequential, one device": (4 * alone, 5 * alone), "wave, a device a slot": (4 * 0.1534, 0.1534)}
    rows = {}
    for name, (first, chunk) in pace.items():
        decode = chunk / 3
        costs = UnitCosts(denoise=first - decode, decode=decode)
        scenario = Scenario(adapter=RetainedPrefix(LATENTS), costs=costs, group_seconds=Fraction(1, 4))
        result = simulate(scenario, IsolatedArrivals(count, scenario.period, 0))
        seconds = result.seconds("response")
        rows[name] = {
            "seconds_to_first_chunk": first,
            "frames_per_second": 12 / chunk,
            "median_response": float(np.median(seconds)),
            "mean_response": float(seconds.mean()),
            "mean_wait": float(result.seconds("wait").mean()),
        }
    return rows


def joint(quick: bool, model: str = "sprites-bidirectional") -> dict[str, Any]:
    pipe = wc.load(model)
    group = pipe.model.vae.temporal_factor / pipe.fps
    rows: dict[str, Any] = {}
    for adapter, latents in (
        ("latent-input", 12),
        ("latent-input", 4),
        ("boundary-image", 12),
        ("keyframes", 12),
    ):
        session = pipe.session(
            SUBJECTS[0],
            control="speculative",
            speculation=Speculation(adapter=adapter, latents=latents),
            trace=Trace(),
        )
        segment = run_segment(session, 6 if quick else 14, (0.4, 0.8), latents)
        rows[f"{adapter}, K = {latents}"] = summary([segment], group)
    return rows


def pictures(quick: bool, folder: Path = Path("docs/images")) -> dict[str, Any]:
    """A real stretch of a stream, drawn from its event log; latency and cost from simulations."""
    pipe = wc.load("sprites")
    speculation = Speculation(latents=LATENTS)
    log = Path(tempfile.mkdtemp()) / "run.jsonl"
    with (
        Trace(log) as trace,
        pipe.session(
            SUBJECTS[0], num_frames=129, control="speculative", speculation=speculation, trace=trace
        ) as session,
    ):
        for group in session:
            if group.index in (9, 13, 16, 24):
                threading.Timer(0.11, session.update, [f"{SUBJECTS[group.index % 5]} {MOTIONS[0]}"]).start()
    parts = make_parts(pipe.model, speculation, pipe.rules(None, 4), pipe.levels(4), 0, pipe.size, pipe.fps)
    outputs = [o for event in read_recording(log).inputs for o in parts.controller.handle(event)]
    plots.timeline(folder / "speculative_timeline.png", outputs, 6.5)
    scenario = Scenario(
        adapter=RetainedPrefix(20), costs=UnitCosts(denoise=1.6), group_seconds=Fraction(1, 4)
    )
    arrivals = [IsolatedArrivals(1000, 5.0, 0) for _ in range(2)]
    results = [simulate(s, a) for s, a in zip((scenario, scenario.chunked()), arrivals, strict=True)]
    plots.latency(folder / "speculative_latency.png", *results)
    rates = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6)
    measured = [simulate(scenario, PoissonArrivals(200, r, 0)).totals.amplification for r in rates]
    plots.cost(folder / "speculative_cost.png", rates, measured, 20, 0.25)
    records = [o.record for o in outputs if isinstance(o, ev.Settled)]
    return {"timeline": [record.as_dict() for record in records]}


PARTS: dict[str, Any] = {
    "pictures": pictures,
    "response": response,
    "orders": orders,
    "decisions": decisions,
    "devices": devices,
    "joint": joint,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="shorter runs; nothing is written")
    parser.add_argument("--model", default="sprites-bidirectional", help="joint: name or weights file")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="response: join the stretches in FILE")
    arguments = parser.parse_args()
    path = RESULTS / "speculative.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    result.pop("machine", None)
    for part in arguments.parts:
        more = {"response": {"kept": arguments.keep}, "joint": {"model": arguments.model}}.get(part, {})
        result[part] = PARTS[part](arguments.quick, **more)
        print(json.dumps({part: result[part]}, indent=1))
    if not arguments.quick:
        print(write_result("speculative", result))


if __name__ == "__main__":
    main()
