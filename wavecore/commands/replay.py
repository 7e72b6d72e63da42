"""`wavecore replay`."""

from __future__ import annotations

import click

from wavecore.commands.console import progress, report
from wavecore.commands.options import Command, json_option
from wavecore.errors import InputError


@click.command("replay", cls=Command)
@click.argument("log")
@click.option(
    "--model",
    metavar="NAME|PATH",
    help="Where the recorded model is, if it is not the one of its name in the package.",
)
@json_option
def command(log: str, model: str | None, json_output: bool) -> None:
    """Run the session recorded in the event log LOG again, and compare its frames and statistics.

    LOG is what `wavecore generate --events LOG` writes. The exit code is 1 when something differs.
    """
    from wavecore.loading import load
    from wavecore.replay import FreeRecording, read_log, replay_log

    recording = read_log(log)
    pipe = load(recording.description["model"] if model is None else model)
    with progress("groups", len(recording.hashes), json_output) as advance:
        result = replay_log(recording, pipe, lambda group: advance(1))
    if result.different or not result.same_totals:
        where = f"groups {', '.join(map(str, result.different[:8]))}" if result.different else "statistics"
        raise InputError(f"{log}: expected the recorded frames and statistics, got others: {where}")
    ended = isinstance(recording, FreeRecording) or recording.totals is not None
    statistics = (
        "the recorded statistics" if ended else "no recorded statistics: the log ends before the session"
    )
    report(
        {"groups": result.groups, "different": result.different, "totals": result.totals},
        f"{log}: {result.groups} groups with the recorded frames, and {statistics}",
        json_output,
    )
