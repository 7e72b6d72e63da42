"""Pictures of docs/streaming.md: `python bench/streaming_figures.py [ring|slo|sheet ...]`.

They are written to docs/images. `ring` draws what `bench/streaming.py ring` has logged, `slo` runs in virtual
time, `sheet` restyles two short clips.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

import wavecore as wc
from wavecore.control.clock import SECOND
from wavecore.control.streaming import BatchingController, BatchingSettings, StreamingSettings
from wavecore.control.streaming.simulation import simulate
from wavecore.restyling import motion_noise

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
IMAGES = ROOT / "docs" / "images"


def figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def ring() -> None:
    """Two ranks from the first round of a stream on, as `bench/streaming.py ring` has logged them."""
    from matplotlib import colormaps

    logged = json.loads((RESULTS / "streaming.json").read_text())["ring"]["timeline"]
    colours = colormaps["tab20"].colors  # type: ignore[attr-defined]
    picture = figure(11, 2.8)
    axes = picture.subplots()
    ends = {(entry["rank"], entry["round"]): entry["start_ms"] + entry["ms"] for entry in logged}
    starts = {(entry["rank"], entry["round"]): entry["start_ms"] for entry in logged}
    for entry in logged:
        slots = sorted(entry["slots"].items())
        share = 0.8 / len(slots)
        for row, (level, chunk) in enumerate(slots):
            bottom = entry["rank"] - 0.4 + row * share
            axes.barh(
                bottom,
                entry["ms"],
                share * 0.96,
                entry["start_ms"],
                align="edge",
                color=colours[chunk % 20],
            )
            axes.text(
                entry["start_ms"] + entry["ms"] / 2,
                bottom + share / 2,
                f"c{chunk} σ{level}",
                ha="center",
                va="center",
                fontsize=7,
            )
    last = max(entry["round"] for entry in logged)
    for index in range(last + 1):
        hops = [((0, index), (1, index))] + [((1, index), (0, index + 2))] * (index + 2 <= last)
        for left, reached in hops:
            axes.annotate(
                "",
                (starts[reached], reached[0] - 0.4 * (1 if reached[0] else -1)),
                (ends[left], left[0] + 0.4 * (-1 if left[0] else 1)),
                arrowprops={"arrowstyle": "->", "lw": 0.7},
            )
    axes.set_yticks(range(2), ["rank 0", "rank 1"])
    axes.invert_yaxis()
    axes.axvline(ends[1, 2], color="black", lw=0.8, ls=":")
    axes.text(ends[1, 2], -0.45, " first chunk complete", fontsize=7, va="bottom")
    axes.set(xlabel="ms", xlim=(0, max(ends.values())))
    picture.savefig(IMAGES / "streaming_ring.png", dpi=110)


def slo() -> None:
    """Six streams join after 10 s; from 20 s to 30 s the device has half of its bandwidth.

    Below, T of one stream of four latents a second alone on a device that is three times slower meanwhile.
    """
    period = SECOND // 2
    few = [range(shift * period // 2, 40 * SECOND, period) for shift in range(2)]
    more = [range(10 * SECOND + shift * period // 6, 40 * SECOND, period) for shift in range(6)]

    def device(now: int, frames: int) -> float:
        return (0.012 * frames + 0.06) / (0.5 if 20 * SECOND <= now < 30 * SECOND else 1.0)

    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=8, headroom=0.05))
    passes = simulate(controller, [*few, *more], 0.6, device)
    times = np.array([entry.start for entry in passes]) / SECOND
    picture = figure(10, 5.4)
    above, below, alone = picture.subplots(3, sharex=True, height_ratios=(2, 2, 1))
    above.step(times, [entry.batch for entry in passes], where="post", lw=0.8)
    above.set(ylabel="batch B", ylim=(0, None))
    below.step(times, [1000 * entry.seconds for entry in passes], where="post", lw=0.8, label="pass")
    slack = [
        min(row[0] for row in entry.waiting if row) / SECOND - entry.start / SECOND - entry.seconds
        for entry in passes
    ]
    below.plot(times, [1000 * value for value in slack], lw=0.8, label="slack of the earliest deadline")
    late = [time for time, entry in zip(times, passes, strict=True) if entry.late]
    below.plot(late, [0] * len(late), "rx", ms=4, label=f"late passes: {len(late)}")
    below.set(ylabel="ms")
    below.legend(fontsize=8)

    def slower(now: int, frames: int) -> float:
        return (0.02 * frames + 0.1) * (3.0 if 20 * SECOND <= now < 30 * SECOND else 1.0)

    single = simulate(
        BatchingController(BatchingSettings(lengths=(1, 2, 3), max_batch=1)),
        [range(0, 40 * SECOND, SECOND // 4)],
        2.0,
        slower,
    )
    lengths = [entry.length for entry in single]
    alone.step([entry.start / SECOND for entry in single], lengths, where="post", lw=0.8)
    late = sum(entry.late for entry in single)
    alone.set(xlabel="s", ylabel="length T", ylim=(0, 3.5), yticks=(1, 2, 3))
    alone.set_title(f"one stream alone, passes three times longer meanwhile; late frames: {late}", fontsize=9)
    for axes in (above, below, alone):
        for at in (10, 20, 30):
            axes.axvline(at, color="grey", lw=0.7, ls=":")
    above.set_title(
        "2 streams, 8 from 10 s, half the bandwidth from 20 s to 30 s; objective 600 ms", fontsize=9
    )
    picture.savefig(IMAGES / "streaming_slo.png", dpi=110)


def sheet(columns: int = 8) -> None:
    """Source, fixed noise and noise after the motion: the sprites world in fast motion, and a real clip."""
    from streaming_scenes import PROMPT, SCENE

    from wavecore.media import VideoReader, save_contact_sheet
    from wavecore.sprites.world import render_moving

    pipe = wc.load("sprites")
    fixed = StreamingSettings(chunk_frames=1, first_chunk_frames=1)
    motion = replace(fixed, noise=motion_noise(pipe.model.defaults))
    rows: list[Any] = []
    dog = np.stack(list(islice(VideoReader(ROOT / "examples" / "dog.mp4", size=pipe.size), 41)))
    for source, prompt in (
        (render_moving(SCENE, (7, 4), (-7, -4), 41)[0], PROMPT),
        (dog, "a white ball over water"),
    ):
        picks = np.linspace(4, 40, columns).round().astype(int)
        rows += list(source[picks])
        for settings in (fixed, motion):
            session = pipe.restyle(iter(source), prompt, steps=2, rounds="stream_batch", streaming=settings)
            with session:
                rows += list(np.concatenate([group.frames for group in session])[picks])
    save_contact_sheet(IMAGES / "streaming_sheet.png", rows, columns)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    for name in sys.argv[1:] or ("ring", "slo", "sheet"):
        {"ring": ring, "slo": slo, "sheet": sheet}[name]()
