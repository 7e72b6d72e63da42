"""`wavecore restyle`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.options import config_option, json_option, settings_options
from wavecore.commands.run import check_paths, load_model, run_session
from wavecore.config import RestyleSettings, load_settings
from wavecore.media import VideoReader

if TYPE_CHECKING:
    from wavecore.session import Session
    from wavecore.trace import Trace


@click.command("restyle")
@click.argument("input", required=False)
@click.argument("prompt", required=False)
@settings_options(RestyleSettings)
@config_option
@json_option
def command(config: str | None, json_output: bool, **flags: Any) -> None:
    """Restyle the video INPUT after PROMPT, keeping its motion: as many frames out as in."""
    settings = load_settings(RestyleSettings, flags, config)
    check_paths(settings)
    source = VideoReader(settings.input, fps=settings.fps)  # a bad input is found before the model is loaded

    def start(trace: Trace) -> Session:
        pipe = load_model(settings)
        size = settings.size or pipe.size
        frames = VideoReader(settings.input, size=size, fps=settings.fps)
        return pipe.restyle(
            iter(frames),
            settings.prompt,
            seed=settings.seed,
            steps=settings.steps,
            strength=settings.strength,
            size=size,
            fps=float(frames.fps),
            rounds=settings.rounds,
            placement=settings.placement,
            trace=trace,
        )

    run_session(settings, start, source.fps, source.frames, [], json_output)
