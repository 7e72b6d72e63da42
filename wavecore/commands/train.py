"""`wavecore train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from wavecore.arguments import positive
from wavecore.commands.console import progress, report
from wavecore.commands.options import Command, json_option, refuse_others
from wavecore.errors import UsageError

_USED = {  # by each stage, beside what all of them take
    "all": ("codec_minutes", "minutes", "start"),
    "codec": ("codec_minutes", "start"),
    "denoiser": ("minutes", "start"),
    "export": (),
    "bidirectional": ("minutes", "start"),
}
_STAGES = tuple(_USED)


@click.command("train", cls=Command)
@click.argument("model")
@click.option("--folder", default="runs/sprites", show_default=True, help="Checkpoints, logs and preview.")
@click.option(
    "--stage",
    metavar="|".join(_STAGES),
    default="all",
    show_default=True,
    help="codec: the VAE; denoiser: transformer and text encoder; export: one weights file; bidirectional: "
    "the variant that samples a long window jointly, from causal weights (--from).",
)
@click.option(
    "--minutes",
    type=float,
    default=120.0,
    show_default=True,
    help="Length of the denoiser or bidirectional stage.",
)
@click.option(
    "--codec-minutes", type=float, default=20.0, show_default=True, help="Length of the codec stage."
)
@click.option(
    "--from",
    "start",
    metavar="sprites|FILE",
    help="Weights that a new run goes on from: those of the package, or a file.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of scenes and noise.")
@json_option
def command(
    model: str,
    folder: str,
    stage: str,
    minutes: float,
    codec_minutes: float,
    start: str | None,
    seed: int,
    json_output: bool,
) -> None:
    """Train MODEL ("sprites") from nothing but its procedural world.

    A run that was stopped goes on where it was when the same command is given again.
    """
    if model != "sprites":
        raise UsageError(f'MODEL: expected "sprites", got {model!r}')
    if stage not in _STAGES:
        raise UsageError(f"--stage: expected one of {', '.join(_STAGES)}, got {stage!r}")
    refuse_others(f"with --stage {stage}", "folder", "stage", "seed", *_USED[stage])
    for flag, value in (("--minutes", minutes), ("--codec-minutes", codec_minutes)):
        positive(flag, value)
    from wavecore.train.sprites import SpritesTraining

    result: dict[str, Any] = {"folder": folder, "stage": stage}
    lengths = {"codec": codec_minutes, "export": 0.0, "all": codec_minutes + minutes}
    with _progress(lengths.get(stage, minutes), json_output) as show:
        training = SpritesTraining(Path(folder), seed, show)
        if start is not None:
            training.begin_with(None if start == "sprites" else Path(start))
        if stage in ("all", "codec"):
            training.codec(codec_minutes)
        if stage in ("all", "denoiser"):
            training.denoiser(minutes)
        if stage in ("all", "export", "bidirectional"):
            weights = training.bidirectional(minutes) if stage == "bidirectional" else training.export()
            result |= {"weights": str(weights), "bytes": weights.stat().st_size}
    report(result, str(result.get("weights", folder)), json_output)


@contextmanager
def _progress(minutes: float, quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show the rows of the logs, and on a terminal a bar of the seconds that training has used."""
    with progress("seconds", round(60 * minutes), quiet) as advance:
        reached = 0.0

        def show(row: dict[str, Any]) -> None:
            nonlocal reached
            if not quiet:
                click.echo(", ".join(f"{name} {value}" for name, value in row.items()), err=True)
            if row["minutes"] < reached:  # the next stage
                reached = 0.0
            advance(round(60 * (row["minutes"] - reached)))
            reached = row["minutes"]

        yield show
