"""`wavecore simulate`."""

from __future__ import annotations

from contextlib import ExitStack
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.console import progress, report
from wavecore.commands.options import Command, json_option, refuse_others
from wavecore.errors import InputError, UsageError

if TYPE_CHECKING:
    from wavecore.control.simulate import Arrivals, Result, Scenario
    from wavecore.control.speculative.events import Output

_PROCESSES = ("isolated", "poisson", "geometric")
_RATES = (0.01, 0.03, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2)
_TIMELINE_CHUNKS = 3

_number = click.FloatRange(min=0)


@click.command("simulate", cls=Command)
@click.option(
    "--chunk-seconds", type=float, default=5.0, show_default=True, help="Playing time of a call, T."
)
@click.option(
    "--generation-seconds", type=_number, default=1.6, show_default=True, help="Launch to first group, C."
)
@click.option("--latents", type=click.IntRange(min=1), default=20, show_default=True, help="Of a call, K.")
@click.option("--arrivals", type=click.IntRange(min=1), default=4000, show_default=True, help="Updates.")
@click.option("--process", metavar="|".join(_PROCESSES), default="isolated", show_default=True)
@click.option("--rate", type=float, default=0.1, show_default=True, help="Poisson updates a second.")
@click.option(
    "--probability", type=float, default=0.1, show_default=True, help="Geometric: an update after each group."
)
@click.option("--adapter", default="retained-prefix", show_default=True, help="How a branch continues.")
@click.option("--overlap", type=click.IntRange(min=1), default=4, show_default=True, help="Keyframes: group.")
@click.option("--decode-seconds", type=_number, default=0.0, show_default=True, help="One latent, within C.")
@click.option("--whole-clip", is_flag=True, help="Nothing is decoded before the whole clip is.")
@click.option("--prefill-seconds", type=_number, default=0.0, show_default=True, help="One retained latent.")
@click.option("--encode-seconds", type=_number, default=0.0, show_default=True, help="One boundary image.")
@click.option(
    "--chunk-latents",
    type=click.IntRange(min=1),
    help="Calls are waves of chunks of this many latents, a device a slot, that a prompt can cut.",
)
@click.option(
    "--steps",
    type=click.IntRange(min=1),
    default=4,
    show_default=True,
    help="Of a wave: rounds to its first chunk.",
)
@click.option("--spread", type=_number, default=0.0, show_default=True, help="Deviation of C over C.")
@click.option("--margin", type=_number, default=0.0, show_default=True, help="Safety margin in seconds.")
@click.option("--underrun-rate", type=float, help="Adapt the margin to hold this share of missing groups.")
@click.option("--fallback", default="freeze", show_default=True, help="freeze, drop, stale or retarget.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option("--laws", is_flag=True, help="Measure every law of the specification instead.")
@click.option("--plots", metavar="DIRECTORY", help="Write latency.png, cost.png and timeline.png.")
@click.option("--events", metavar="FILE", help="Write the event log (JSON lines).")
@json_option
def command(json_output: bool, laws: bool, plots: str | None, events: str | None, **flags: Any) -> None:
    """Run the speculative controller in virtual time, beside a fixed-chunk reference."""
    if laws:
        refuse_others("with --laws", "laws", "arrivals", "seed")
        _laws(flags["arrivals"], flags["seed"], json_output)
        return
    _refuse_unused(flags)
    scenario = _scenario(flags)
    _arrivals(flags, scenario)  # a wrong value is found before the output is opened
    if plots is not None:
        from wavecore.control.simulate import plots as drawing

        drawing.check()
        _make_directory(Path(plots))
    outputs: list[Output] = []
    watchers: list[Any] = [outputs.append] if plots is not None else []
    with ExitStack() as stack, progress("simulations", 2, json_output) as advance:
        if events is not None:
            watchers.append(_log(events, stack, flags))
        controller = _run(scenario, flags, watchers)
        advance(1)
        chunked = scenario.chunked()
        fixed_chunk = _run(chunked, flags, [])
        advance(1)
    if plots is not None:
        drawing.latency(Path(plots) / "latency.png", controller, fixed_chunk)
        drawing.timeline(Path(plots) / "timeline.png", outputs, _TIMELINE_CHUNKS * scenario.period)
        drawing.cost(Path(plots) / "cost.png", *_cost_curve(scenario, flags))
    result = {
        "settings": flags,
        "controller": controller.summary(),
        "fixed_chunk": fixed_chunk.summary(),
    }
    report(result, _text(controller, fixed_chunk), json_output)


def _refuse_unused(flags: dict[str, Any]) -> None:
    """Refuse what only another process, adapter or order of a call has."""
    for name, needed, there in (
        ("rate", "--process poisson", flags["process"] == "poisson"),
        ("probability", "--process geometric", flags["process"] == "geometric"),
        ("overlap", "--adapter keyframes", flags["adapter"] == "keyframes"),
        ("steps", "--chunk-latents", flags["chunk_latents"] is not None),
    ):
        if not there:
            others = click.get_current_context().params.keys() - {name}
            refuse_others(f"without {needed}", *others)


def _scenario(flags: dict[str, Any]) -> Scenario:
    from wavecore.control.simulate import Scenario, WaveCosts
    from wavecore.control.speculative import ADAPTERS, FALLBACKS, Keyframes, UnitCosts

    kind = ADAPTERS.get(flags["adapter"])
    for flag, value, allowed in (
        ("--adapter", flags["adapter"], tuple(ADAPTERS)),
        ("--process", flags["process"], _PROCESSES),
        ("--fallback", flags["fallback"], FALLBACKS),
    ):
        if value not in allowed:
            raise UsageError(f"{flag}: expected one of {', '.join(allowed)}, got {value!r}")
    for flag in ("chunk_seconds", "generation_seconds", "decode_seconds"):
        if not 0 <= flags[flag] < float("inf") or (flag == "chunk_seconds" and not flags[flag]):
            raise UsageError(
                f"--{flag.replace('_', '-')}: expected a finite number above 0, got {flags[flag]}"
            )
    latents, generation, decode = flags["latents"], flags["generation_seconds"], flags["decode_seconds"]
    wave = flags["chunk_latents"] is not None
    for flag in ("whole_clip", "prefill_seconds", "encode_seconds"):
        if wave and flags[flag]:
            raise UsageError(f"--{flag.replace('_', '-')}: expected none with --chunk-latents")
    decoded = decode * (latents if flags["whole_clip"] else 1)
    if decoded > generation:
        raise UsageError(
            f"--decode-seconds: expected at most --generation-seconds ({generation:g}), got {decoded:g}"
        )
    costs: UnitCosts | WaveCosts
    if wave:
        steps = flags["steps"]
        costs = WaveCosts(
            steps=steps,
            chunk_latents=flags["chunk_latents"],
            round=(generation - decode) / steps,
            decode=decode,
        )
    else:
        costs = UnitCosts(
            denoise=generation - decoded,
            decode=decode,
            prefill=flags["prefill_seconds"],
            encode=flags["encode_seconds"],
            whole_clip=flags["whole_clip"],
        )
    assert kind is not None
    return Scenario(
        adapter=Keyframes(latents, group=flags["overlap"]) if kind is Keyframes else kind(latents),
        costs=costs,
        cut=wave,
        group_seconds=Fraction(flags["chunk_seconds"]).limit_denominator(10**6) / latents,
        spread=flags["spread"],
        margin=flags["margin"],
        target=flags["underrun_rate"],
        fallback=flags["fallback"],
        seed=flags["seed"],
    )


def _arrivals(flags: dict[str, Any], scenario: Scenario) -> Arrivals:
    from wavecore.control.simulate import GeometricArrivals, IsolatedArrivals, PoissonArrivals

    count, seed = flags["arrivals"], flags["seed"]
    if flags["process"] == "poisson":
        return PoissonArrivals(count, flags["rate"], seed)
    if flags["process"] == "geometric":
        return GeometricArrivals(count, flags["probability"], seed)
    return IsolatedArrivals(count, scenario.period, seed)


def _run(scenario: Scenario, flags: dict[str, Any], watchers: list[Any]) -> Result:
    from wavecore.control.simulate import simulate

    def watch(output: Output) -> None:
        for watcher in watchers:
            watcher(output)

    return simulate(scenario, _arrivals(flags, scenario), watch if watchers else None)


def _log(path: str, stack: ExitStack, flags: dict[str, Any]) -> Any:
    from functools import partial

    from wavecore import __version__
    from wavecore.control.speculative.log import record
    from wavecore.trace import Trace

    trace = stack.enter_context(Trace(path))
    trace.record("run", time=0.0, wavecore=__version__, settings=flags)
    return partial(record, trace)


def _make_directory(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{path}: cannot make the directory: {error.strerror}") from None


def _cost_curve(scenario: Scenario, flags: dict[str, Any]) -> tuple[Any, ...]:
    from wavecore.control.simulate import PoissonArrivals, simulate

    count = min(flags["arrivals"], 500)
    measured = [
        simulate(scenario, PoissonArrivals(count, rate, flags["seed"])).totals.amplification
        for rate in _RATES
    ]
    latents = scenario.adapter.playable(scenario.adapter.latents)
    return _RATES, measured, latents, float(scenario.group_seconds)


def _laws(count: int, seed: int, json_output: bool) -> None:
    from wavecore.control.simulate import laws

    with progress("laws", len(laws.LAWS) + 2, json_output) as advance:
        measured = laws.measure(count, seed, advance)
        scheduler = laws.full_scheduler(count, seed)
        advance(1)
        lengths = laws.chunk_lengths(count, seed)
        advance(1)
    result = {
        "laws": [law.as_dict() for law in measured],
        "full_scheduler": scheduler,
        "chunk_lengths": lengths,
    }
    report(result, laws.table(measured), json_output)


def _text(controller: Result, fixed_chunk: Result) -> str:
    lines = [f"{'':12} {'mean':>8} {'p50':>8} {'p90':>8} {'p99':>8} {'max':>8}  seconds"]
    for name, result in (("controller", controller), ("fixed chunk", fixed_chunk)):
        for part in ("response", "wait", "generation", "alignment"):
            values = result.summary()[part]
            if values is not None:
                numbers = " ".join(f"{value:8.4f}" for value in values.values())
                lines.append(f"{part:12} {numbers}  {name}")
    totals = controller.totals
    lines += [
        f"{totals.displayed} of {len(controller.records)} updates displayed, {totals.superseded} superseded; "
        f"{totals.calls} calls",
        f"sampled per played A {totals.amplification:.4f}, waste w {totals.waste:.4f}, "
        f"load ρ {controller.summary()['load']:.4f}",
        f"underruns {totals.underruns}, missed deadlines {totals.missed_deadlines}, "
        f"startup {(totals.startup or 0) / 1e9:.3f} s",
    ]
    return "\n".join(lines)
