"""`wavecore eval`."""

from __future__ import annotations

from typing import get_args

import click

from wavecore.commands.console import progress, report
from wavecore.commands.options import json_option
from wavecore.errors import UsageError
from wavecore.rounds import RoundsKind

_ROUNDS = get_args(RoundsKind)


@click.command("eval")
@click.option("--model", default="sprites", show_default=True, help="sprites, or the path of its weights.")
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Denoising steps.")
@click.option("--rounds", metavar="|".join(_ROUNDS), default="wavefront", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the clips.")
@json_option
def command(model: str, steps: int, rounds: str, seed: int, json_output: bool) -> None:
    """Measure a sprites model: does the video show what the prompt says, now and a minute later?"""
    if rounds not in _ROUNDS:
        raise UsageError(f"--rounds: expected one of {', '.join(_ROUNDS)}, got {rounds!r}")
    import wavecore
    from wavecore.train.evaluation import Setting, evaluate

    pipe = wavecore.load(model)
    setting = Setting(steps=steps, rounds=rounds, seed=seed)  # type: ignore[arg-type]
    with progress("clips", None, json_output) as advance:
        result = evaluate(pipe, setting, lambda what, done, total: advance(1))
    lines = [f"{part}: {name} {value:.2f}" for part, row in result.items() for name, value in row.items()]
    report(dict(result), "\n".join(lines), json_output)
