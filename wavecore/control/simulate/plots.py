"""Plots of simulations (matplotlib, which the extra `eval` brings)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from wavecore.control.clock import SECOND
from wavecore.control.simulate.laws import poisson_amplification
from wavecore.control.simulate.run import Result
from wavecore.control.speculative.events import Accepted, Display, JobEnd, Launch, Output, Underrun
from wavecore.errors import UsageError
from wavecore.files import complete_or_nothing

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def latency(path: Path, controller: Result, fixed_chunk: Result) -> None:
    """Cumulative distribution of the response, beside the fixed-chunk reference."""
    figure = _figure(6, 4)
    axes = figure.subplots()
    for name, result in (("controller", controller), ("fixed chunk", fixed_chunk)):
        values = np.sort(result.seconds("response"))
        axes.step(values, np.arange(1, len(values) + 1) / max(len(values), 1), where="post", label=name)
    axes.set(xlabel="from update to display in s", ylabel="share of updates", xlim=(0, None), ylim=(0, 1))
    axes.legend()
    _save(figure, path)


def cost(path: Path, rates: Sequence[float], measured: Sequence[float], latents: int, group: float) -> None:
    """A against the update rate, with the law.

    Parameters
    ----------
    path : path
    rates : sequence of float
        λ in updates per second.
    measured : sequence of float
        A of the full scheduler at each.
    latents : int
    group : float
        δ in seconds.
    """
    figure = _figure(6, 4)
    axes = figure.subplots()
    grid = np.geomspace(min(rates), max(rates), 200)
    law = [poisson_amplification(latents, rate, group) for rate in grid]
    axes.plot(grid, law, label="law: K p / (1 - (1 - p)$^K$), p = 1 - exp(-λδ)")
    axes.plot(rates, measured, "o", label="full scheduler")
    axes.set(xlabel="updates per second", ylabel="predictions sampled per one played, A", xscale="log")
    axes.legend()
    _save(figure, path)


def timeline(path: Path, outputs: Sequence[Output], seconds: float) -> None:
    """Jobs, updates and what is shown, from one second before the first update on.

    Parameters
    ----------
    path : path
    outputs : sequence of Output
        Of one simulation, in order.
    seconds : float
        How much to draw.
    """
    updates = [o for o in outputs if isinstance(o, Accepted) and o.version]
    origin = (updates[0].time if updates else outputs[0].time) - SECOND
    end = origin + seconds * SECOND
    launches = {o.job: o for o in outputs if isinstance(o, Launch)}
    shown = [o for o in outputs if isinstance(o, Display | Underrun)]
    figure = _figure(10, 2.8)
    axes = figure.subplots()

    def bar(row: int, start: int, stop: int, version: int, text: str, **style: Any) -> None:
        first, last = max(start, origin), min(stop, end)
        if first < last:
            span = ((first - origin) / SECOND, (last - first) / SECOND)
            axes.broken_barh([span], (row - 0.35, 0.7), facecolors=f"C{version % 10}", **style)
            axes.text(span[0] + span[1] / 2, row, text, ha="center", va="center", fontsize=7, clip_on=True)

    for job in outputs:
        if isinstance(job, JobEnd):
            launch = launches[job.job]
            bar(1, job.start, job.time, launch.version, f"{launch.reason} at {launch.position}")
    for now, following in pairwise(shown):
        if isinstance(now, Display):
            bar(0, now.time, following.time, now.version, str(now.position), edgecolor="white", linewidth=0.5)
    for update in updates:
        if update.time <= end:
            axes.axvline((update.time - origin) / SECOND, color=f"C{update.version % 10}", linestyle="--")
    axes.set_yticks([0, 1], ["shown", "job"])
    axes.set(
        xlim=(0, seconds), ylim=(-0.6, 1.6), xlabel="seconds; dashed: an update arrives; colour: its version"
    )
    _save(figure, path)


def check() -> None:
    """Find out before a long run that plots cannot be drawn.

    Raises
    ------
    UsageError
        matplotlib is missing.
    """
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise UsageError(
            "plots: expected matplotlib, which is not installed: pip install wavecore[eval]"
        ) from None


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: Figure, path: Path) -> None:
    with complete_or_nothing(path) as pending:
        figure.savefig(pending, format="png", dpi=150)
