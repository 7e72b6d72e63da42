"""`wavecore generate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.options import Command, config_option, json_option, settings_options
from wavecore.commands.run import check_paths, run_session
from wavecore.config import GenerateSettings, files_read, load_settings

if TYPE_CHECKING:
    from wavecore.interactive.session import SpeculativeSession
    from wavecore.interactive.speculation import Speculation
    from wavecore.placement.replicas import ReplicaOptions
    from wavecore.session import Session
    from wavecore.trace import Trace


@click.command("generate", cls=Command)
@click.argument("prompt", required=False)
@settings_options(GenerateSettings)
@config_option
@json_option
def command(config: str | None, json_output: bool, **flags: Any) -> None:
    """Make a video from PROMPT, a prompt schedule (--prompts), or both."""
    settings = load_settings(GenerateSettings, flags, config)
    first, *later = settings.schedule
    replicas = None
    if settings.placement == "replicas":
        replicas = _ranks(settings)
    check_paths(settings, files_read(flags, config))

    def start(trace: Trace) -> Session | SpeculativeSession:
        return settings.load().session(
            first.prompt,
            seed=settings.seed,
            steps=settings.steps,
            num_frames=settings.frames,
            size=settings.size,
            fps=settings.fps,
            rounds=settings.rounds,
            placement=settings.placement,
            devices=settings.devices,
            split=settings.split,
            decoders=settings.decoders,
            replicas=replicas,
            control=settings.control,
            speculation=_speculation(settings),
            trace=trace,
        )

    over_processes = settings.placement != "local" or settings.decoders > 0
    run_session(settings, start, settings.fps, settings.frames, later, json_output, keep=over_processes)


def _ranks(settings: GenerateSettings) -> ReplicaOptions | None:
    """How stages start under `torchrun`, which has started this process as rank 0; others are stages here."""
    from wavecore.placement import ranks

    rank = ranks.rank()
    if rank is None:
        return None
    if rank:
        sys.exit(ranks.serve_rank(settings.load().model.dit))
    from wavecore.placement.replicas import ReplicaOptions

    return ReplicaOptions(launch="torchrun", transport="shared" if ranks.one_machine() else "gloo")


def _speculation(settings: GenerateSettings) -> Speculation | None:
    """What is given, or its defaults; a file has no viewer, so playback need not take its time."""
    if settings.control == "free":
        return None
    from wavecore.interactive.speculation import Speculation

    return Speculation(
        adapter=settings.adapter,
        latents=settings.latents,
        fallback=settings.fallback or "freeze",
        pacing=settings.pacing or "virtual",
    )
