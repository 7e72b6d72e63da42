"""`wavecore generate`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.options import config_option, json_option, settings_options
from wavecore.commands.run import load_model, run_session
from wavecore.config import GenerateSettings, load_settings

if TYPE_CHECKING:
    from wavecore.session import Session
    from wavecore.trace import Trace


@click.command("generate")
@click.argument("prompt", required=False)
@settings_options(GenerateSettings)
@config_option
@json_option
def command(config: str | None, json_output: bool, **flags: Any) -> None:
    """Make a video from PROMPT, a prompt schedule (--prompts), or both."""
    settings = load_settings(GenerateSettings, flags, config)
    first, *later = settings.schedule

    def start(trace: Trace) -> Session:
        return load_model(settings).session(
            first.prompt,
            seed=settings.seed,
            steps=settings.steps,
            num_frames=settings.frames,
            size=settings.size,
            fps=settings.fps,
            rounds=settings.rounds,
            placement=settings.placement,
            control=settings.control,
            trace=trace,
        )

    run_session(settings, start, settings.fps, settings.frames, later, json_output)
