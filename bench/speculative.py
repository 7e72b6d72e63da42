"""The speculative controller: `python bench/speculative.py PART ... [--quick]`.

`response`: sprites in real time, updates at random phases, and by turns a fixed-chunk stream of the same K.
`orders`: sequential order, a wave, a wave that a prompt can cut, by turns: response and throughput.
`places`: such a wave on one device, over replicas, on a ring of two, by turns: the same.
`joint`: the bidirectional variant in real time, K as trained against a short window.
`adapters`: what streams of every adapter show before and after 40 updates, read back.
`decisions`: events a second, and time of one event, of the controller alone.
`devices`: simulated response at the published timings of Wan 1.3B on one and on several devices.
`lengths`: simulated response of the bidirectional adapter at several K and the same C.
`laws`: every law of docs/speculative.md.
`pictures`: those of docs/speculative.md, the timeline from the event log of a real stream.

Results are merged into bench/results/speculative.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
import speculative_simulated as simulated
from machine import read_result, write_result
from speculative_streams import (
    LATENTS,
    MOTIONS,
    SUBJECTS,
    Segment,
    fixed_chunk_session,
    run_segment,
    start,
    summary,
)

import wavecore as wc
from wavecore.control.simulate import laws, plots
from wavecore.control.speculative import events as ev
from wavecore.interactive.replay import read_recording
from wavecore.interactive.speculation import Speculation, make_parts
from wavecore.placing import Placing
from wavecore.trace import Trace
from wavecore.train.evaluation import Setting, adapter_readback

GAPS = (0.4, 0.8)  # seconds between updates
SHOWN = 200  # updates to be shown
ORDERS: dict[str, dict[str, Any]] = {
    "sequential": {"rounds": "sequential"},
    "wave": {"rounds": "wavefront", "cut": False},
    "wave that a prompt can cut": {"rounds": "wavefront", "cut": True},
}
PLACES: dict[str, dict[str, Any]] = {
    "local": {"rounds": "wavefront"},
    "replicas": {"rounds": "wavefront", "placement": "replicas"},
    "layers": {"rounds": "wavefront", "placement": "layers"},
}
JOINT = (("latent-input", 12), ("latent-input", 3), ("boundary-image", 12), ("keyframes", 12))


def response(quick: bool) -> dict[str, Any]:
    """Stretches of both kinds of streams by turns, until enough updates were shown."""
    pipe = wc.load("sprites")
    group = pipe.model.vae.temporal_factor / pipe.fps
    wanted, (long, baseline) = (10, (8, 8)) if quick else (SHOWN, (36, 32))
    speculative: list[Segment] = []
    chunked: list[Segment] = []
    while sum(segment.displayed for segment in speculative) < wanted:
        seed = len(speculative)
        session = start(pipe, "wavefront", cut=True)
        speculative.append(run_segment(session, long, GAPS, seed))
        chunks = fixed_chunk_session(pipe, "wavefront", SUBJECTS[0], Trace())
        chunked.append(run_segment(chunks, baseline, (0, 0), seed))
    return {
        "latents": LATENTS,
        "speculative": summary(speculative, group),
        "fixed_chunk": summary(chunked, group * LATENTS),
    }


def orders(quick: bool) -> dict[str, Any]:
    """Calls and stretches of streams of each order by turns: seconds of a call, and response."""
    return by_turns(ORDERS, quick)


def places(quick: bool) -> dict[str, Any]:
    """The same of a wave that a prompt can cut, on one device, over replicas and on a ring of two."""
    return by_turns(PLACES, quick)


def share_cores(case: dict[str, Any]) -> None:
    """Both cores for one process, or a thread for each of several."""
    torch.set_num_threads(1 if "placement" in case else 2)


def by_turns(cases: dict[str, dict[str, Any]], quick: bool) -> dict[str, Any]:
    """Calls and stretches of streams of each case; throughput against the first one."""
    pipe = wc.load("sprites")
    group = pipe.model.vae.temporal_factor / pipe.fps
    firsts: dict[str, list[float]] = {name: [] for name in cases}
    wholes: dict[str, list[float]] = {name: [] for name in cases}
    generators = {}
    for name, more in cases.items():
        share_cores(more)
        rules = pipe.rules(more["rounds"], 4)
        place = Placing(placement=more.get("placement", "local")).calls(pipe.model, rules)
        parts = make_parts(
            pipe.model, Speculation(latents=LATENTS), rules, pipe.levels(4), 0, pipe.size, pipe.fps, place
        )
        generators[name] = parts.generator
    for turn in range(4 if quick else 24):
        for name, generator in generators.items():
            share_cores(cases[name])
            generator.release(turn * LATENTS)
            began, first = time.perf_counter(), 0.0
            for made in generator.call(turn * LATENTS, LATENTS, 0, SUBJECTS[0]):
                if made.parts & ev.PIXELS and not first:
                    first = time.perf_counter() - began
            if turn > 1:  # the context is full
                firsts[name].append(first)
                wholes[name].append(time.perf_counter() - began)
    for generator in generators.values():
        generator.close()
    segments: dict[str, list[Segment]] = {name: [] for name in cases}
    for turn in range(1 if quick else 3):
        for name, more in cases.items():
            share_cores(more)
            session = start(pipe, **more)
            segments[name].append(run_segment(session, 6 if quick else 16, GAPS, turn))
    reference = next(iter(cases))
    ratios = {name: np.array(wholes[reference]) / np.array(wholes[name]) for name in cases}
    return {
        name: {
            "first_group_seconds": float(np.median(firsts[name])),
            "call_seconds": float(np.median(wholes[name])),
            "frames_per_second": LATENTS * group * pipe.fps / float(np.median(wholes[name])),
            f"throughput_against_{reference}": float(np.median(ratios[name])),
            **summary(segments[name], group),
        }
        for name in cases
    }


def joint(quick: bool, model: str = "sprites-bidirectional") -> dict[str, Any]:
    """Streams of every adapter of the bidirectional variant by turns."""
    pipe = wc.load(model)
    group = pipe.model.vae.temporal_factor / pipe.fps
    segments: dict[tuple[str, int], list[Segment]] = {chosen: [] for chosen in JOINT}
    for turn in range(1 if quick else 2):
        for adapter, latents in JOINT:
            session = start(pipe, adapter=adapter, latents=latents)
            segments[adapter, latents].append(run_segment(session, 6 if quick else 18, (0.6, 1.2), turn))
    return {
        f"{adapter}, K = {latents}": summary(segments[adapter, latents], group) for adapter, latents in JOINT
    }


def adapters(quick: bool) -> dict[str, Any]:
    """Colour, shape, direction and so on in percent; no time is measured."""
    count = 2 if quick else 40
    models = ("sprites", "sprites-bidirectional")
    return {name: adapter_readback(wc.load(name), Setting(), count) for name in models}


def measured_laws(quick: bool) -> dict[str, Any]:
    """Every law, and the full scheduler beside the one that knows no times."""
    count = 240 if quick else 2400
    return {
        "laws": [law.as_dict() for law in laws.measure(count, 0)],
        "full_scheduler": laws.full_scheduler(count // 4, 0),
    }


def pictures(quick: bool, folder: Path = Path("docs/images")) -> dict[str, Any]:
    """A real stretch of a stream, drawn from its event log; latency and cost from simulations."""
    pipe = wc.load("sprites")
    speculation = Speculation(latents=LATENTS, cut=True)
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
    simulated.pictures(folder)
    records = [o.record for o in outputs if isinstance(o, ev.Settled)]
    return {"timeline": [record.as_dict() for record in records]}


PARTS: dict[str, Any] = {
    "response": response,
    "orders": orders,
    "places": places,
    "joint": joint,
    "adapters": adapters,
    "decisions": simulated.decisions,
    "devices": simulated.devices,
    "lengths": simulated.lengths,
    "laws": measured_laws,
    "pictures": pictures,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="+", choices=PARTS)
    parser.add_argument("--quick", action="store_true", help="shorter runs; nothing is written")
    arguments = parser.parse_args()
    for part in arguments.parts:
        measured = PARTS[part](arguments.quick)
        print(json.dumps({part: measured}, indent=1))
        if not arguments.quick:
            kept = {name: value for name, value in read_result("speculative").items() if name != "machine"}
            print(write_result("speculative", {**kept, part: measured}))


if __name__ == "__main__":
    main()
