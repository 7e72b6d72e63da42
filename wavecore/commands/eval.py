"""`wavecore eval`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import click

from wavecore.commands.console import progress, report
from wavecore.commands.options import Command, json_option, refuse_others, settings_options
from wavecore.config import load_settings
from wavecore.errors import UsageError
from wavecore.model_settings import ModelSettings
from wavecore.rounds import RoundsKind

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_ROUNDS = get_args(RoundsKind)


@click.command("eval", cls=Command)
@settings_options(ModelSettings)
@click.option("--steps", type=click.IntRange(min=1), default=4, show_default=True, help="Denoising steps.")
@click.option("--rounds", metavar="|".join(_ROUNDS), default="wavefront", show_default=True)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the clips.")
@click.option("--source", metavar="FILE", help="A video: measure EDITED against it instead of a model.")
@click.option("--edited", metavar="FILE", help="The same video, edited.")
@click.option(
    "--size", metavar="WIDTHxHEIGHT", help="Measure at this size; that of the source when left out."
)
@json_option
def command(
    steps: int,
    rounds: str,
    seed: int,
    source: str | None,
    edited: str | None,
    size: str | None,
    json_output: bool,
    **flags: Any,
) -> None:
    """Measure a sprites model: does the video show what the prompt says, now and a minute later?

    With --source and --edited, measure any two videos: warp error, and for each of them similarity of
    consecutive frames, flicker and drift.
    """
    if source is not None or edited is not None:
        if source is None or edited is None:
            raise UsageError("--source, --edited: expected both, got one")
        refuse_others("with --source and --edited", "source", "edited", "size")
        _compare(source, edited, size, json_output)
        return
    refuse_others("without --source and --edited", *ModelSettings.model_fields, "steps", "rounds", "seed")
    if rounds not in _ROUNDS:
        raise UsageError(f"--rounds: expected one of {', '.join(_ROUNDS)}, got {rounds!r}")
    pipe = load_settings(ModelSettings, flags).load()
    from wavecore.train.evaluation import Setting, evaluate

    setting = Setting(steps=steps, rounds=rounds, seed=seed)  # type: ignore[arg-type]
    with progress("clips", None, json_output) as advance:
        result = evaluate(pipe, setting, lambda what, done, total: advance(1))
    lines = [f"{part}: {name} {value:.2f}" for part, row in result.items() for name, value in row.items()]
    report(dict(result), "\n".join(lines), json_output)


def _compare(source: str, edited: str, size: str | None, json_output: bool) -> None:
    """Measure two videos at one size."""
    from wavecore.media import VideoReader, read_video
    from wavecore.metrics import warp_error

    original = VideoReader(source)
    pixels = original.info.width, original.info.height
    if size is not None:
        width, cross, height = size.partition("x")
        if not (cross and width.isdigit() and height.isdigit()):
            raise UsageError(f"--size: expected WIDTHxHEIGHT, got {size!r}")
        pixels = int(width), int(height)
    clips = {"source": read_video(source, pixels), "edited": read_video(edited, pixels)}
    lengths = {name: len(clip) for name, clip in clips.items()}
    if lengths["source"] != lengths["edited"]:
        raise UsageError(
            f"{Path(edited)}: expected {lengths['source']} frames as in the source, got {lengths['edited']}"
        )
    result: dict[str, Any] = {
        "warp_error": warp_error(clips["source"], clips["edited"]),
        **{name: _measures(clip, float(original.fps)) for name, clip in clips.items()},
    }
    lines = [f"warp error {result['warp_error']:.2f} grey levels"]
    for name in clips:
        lines.append(f"{name}: " + ", ".join(f"{key} {value:.2f}" for key, value in result[name].items()))
    report(result, "\n".join(lines), json_output)


def _measures(clip: NDArray[np.uint8], fps: float) -> dict[str, float]:
    from wavecore.metrics import drift, flicker, frame_similarity

    slow = drift(clip, fps)
    return {
        "frame_similarity": frame_similarity(clip),
        "flicker": flicker(clip),
        "colour_drift": slow.colour,
        "contrast_drift": slow.contrast,
    }
