"""`wavecore plan`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.console import report
from wavecore.commands.options import Command, json_option
from wavecore.errors import UsageError
from wavecore.rounds.noise import TRAINING_STEPS

if TYPE_CHECKING:
    from wavecore.plan import Assignment, Plan


@click.command("plan", cls=Command)
@click.option(
    "--model",
    default="wan-1.3b",
    show_default=True,
    help="wan-1.3b, wan-14b, or sprites with cores of this machine.",
)
@click.option(
    "--devices",
    default="8xh200",
    show_default=True,
    help="How many of which device; 2xthis times the sprites model on this machine and plans for its cores.",
)
@click.option(
    "--steps", type=click.IntRange(1, TRAINING_STEPS), default=4, show_default=True, help="Denoising steps."
)
@click.option("--size", help="WIDTHxHEIGHT in pixels; 832x480, or 128x128 of sprites, when left out.")
@click.option(
    "--rounds", help="Only plans for models of these rounds: wavefront, sequential or stream_batch."
)
@click.option("--timeline", metavar="FILE", help="Write the rounds of the best wavefront plan as a picture.")
@json_option
def command(
    model: str,
    devices: str,
    steps: int,
    size: str | None,
    rounds: str | None,
    timeline: str | None,
    json_output: bool,
) -> None:
    """Predict what placements do on a number of devices, and choose the best."""
    from wavecore.plan.costs import MODELS, parse_devices
    from wavecore.plan.planner import plans
    from wavecore.rounds import table, wavefront

    known = ("sprites", *MODELS)
    if model not in known:
        raise UsageError(f"--model: expected one of {', '.join(known)}, got {model!r}")
    rounds = None if rounds is None else rounds.replace("-", "_")
    if rounds not in (None, "wavefront", "sequential", "stream_batch"):
        raise UsageError(f"--rounds: expected wavefront, sequential or stream_batch, got {rounds!r}")
    if timeline is not None:
        from wavecore.files import check_output

        check_output(timeline)
    pixels = _size(size or ("128x128" if model == "sprites" else "832x480"))
    count, device = parse_devices(devices)
    if device is None or model == "sprites":
        if device is not None:
            raise UsageError(
                f"--devices: expected cores of this machine for sprites, such as 2xthis, got {devices!r}"
            )
        found, device_name = _measured(model, count, steps, pixels), "cores of this machine, measured"
    else:
        found, device_name = plans(MODELS[model], device, count, steps, pixels), device.name
    shown = [plan for plan in found if rounds in (None, plan.rounds)]
    if not shown:
        raise UsageError(f"--rounds: expected rounds that {count} devices can run, got {rounds}")
    best_wave = next((plan for plan in shown if plan.result is not None), None)
    across, down = pixels
    lines = [f"{model}, {count} {device_name}, {steps} steps, {across}x{down}", "", _head()]
    lines += [_row(plan) for plan in shown[:8]]
    published = next((plan for plan in shown[8:] if plan.name.startswith(f"wave {steps}+1+")), None)
    if published is not None:
        lines.append(_row(published))
    lines += ["", f"best: {shown[0].name}, {shown[0].fps:.1f} frames/s", *_devices(shown[0])]
    if best_wave is not None and best_wave.result is not None:
        lines += ["", f"rounds of {best_wave.name}:", table(wavefront(steps, 2 * steps)), ""]
        waits = {edge: wait for edge, wait in best_wave.exposed.items() if wait > 5e-7}
        lines.append("exposed waits of a round: " + (_waits(waits, steps) or "none"))
        if timeline is not None:
            from wavecore.plan.picture import draw

            tick = best_wave.tick
            spans = [span for span in best_wave.result.spans if span.begin < (2 * steps + 3) * tick]
            draw(spans, timeline, f"{best_wave.name}: tick {tick * 1e3:.1f} ms")
    elif timeline is not None:
        raise UsageError("--timeline: expected a plan with rounds of a wavefront, got none")
    result = {"plans": [_dict(plan) for plan in shown], "best": shown[0].name}
    report(result, "\n".join(lines), json_output)


def _measured(name: str, count: int, steps: int, size: tuple[int, int]) -> list[Plan]:
    """Plans for cores of this machine, at the rates of the sprites model on them."""
    import wavecore
    from wavecore.plan.costs import MODELS
    from wavecore.plan.measure import measure
    from wavecore.plan.planner import plans
    from wavecore.rounds import Sequential, StreamBatch, Wavefront

    pipe = wavecore.load("sprites")
    measured = measure(pipe.model, pipe.size if name in MODELS else size)
    if name in MODELS:
        return plans(MODELS[name], measured.device, count, steps, size)
    rules = [pipe.rules(kind, steps) for kind in ("wavefront", "sequential", "stream_batch")]
    wave, sequential, batch = rules
    assert (
        isinstance(wave, Wavefront) and isinstance(sequential, Sequential) and isinstance(batch, StreamBatch)
    )
    return plans(measured.model, measured.device, count, steps, size, wave, measured.units, sequential, batch)


def _size(text: str) -> tuple[int, int]:
    width, _, height = text.lower().partition("x")
    if not (width.isdecimal() and height.isdecimal()):
        raise UsageError(f"--size: expected WIDTHxHEIGHT in pixels, such as 832x480, got {text!r}")
    return int(width), int(height)


def _head() -> str:
    columns = ("devices", "tick ms", "frame/s", "first s", "GiB")
    return f"{'placement':34} {'rounds':12} " + " ".join(f"{name:>9}" for name in columns)


def _row(plan: Plan) -> str:
    memory = max(assignment.bytes for assignment in plan.assignments) / 2**30
    numbers = (f"{plan.devices}", f"{plan.period * 1e3:.1f}", f"{plan.fps:.1f}", f"{plan.first_frame:.2f}")
    return f"{plan.name:34} {plan.rounds:12} " + " ".join(
        f"{text:>9}" for text in (*numbers, f"{memory:.1f}")
    )


def _devices(plan: Plan) -> list[str]:
    return [f"  {_work(a):44} {a.busy * 1e3:8.1f} ms {a.bytes / 2**30:7.1f} GiB" for a in plan.assignments]


def _work(assignment: Assignment) -> str:
    parts = [f"stage {stage}" for stage in assignment.stages]
    if assignment.decode:
        parts.append(f"{assignment.decode:.0%} of decoding")
    return " and ".join(parts) + (f", on {assignment.devices} devices" if assignment.devices > 1 else "")


def _waits(waits: dict[tuple[int, int], float], steps: int) -> str:
    def name(stage: int) -> str:
        return "store" if stage == steps else f"s{stage}"

    return ", ".join(f"{name(a)} to {name(b)} {wait * 1e3:.3f} ms" for (a, b), wait in sorted(waits.items()))


def _dict(plan: Plan) -> dict[str, Any]:
    return {
        "name": plan.name,
        "rounds": plan.rounds,
        "devices": plan.devices,
        "tick_seconds": plan.tick,
        "period_seconds": plan.period,
        "frames_per_second": plan.fps,
        "first_frame_seconds": plan.first_frame,
        "exposed_seconds": {f"{a}-{b}": wait for (a, b), wait in plan.exposed.items()},
        "assignments": [
            {
                "stages": list(a.stages),
                "decode": a.decode,
                "devices": a.devices,
                "busy_seconds": a.busy,
                "bytes": a.bytes,
            }
            for a in plan.assignments
        ],
    }
