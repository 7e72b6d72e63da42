"""`wavecore trace`."""

from __future__ import annotations

from pathlib import Path

import click

from wavecore.commands.console import report
from wavecore.commands.options import json_option
from wavecore.errors import UsageError
from wavecore.trace import exposed_waits, read_events, write_perfetto


@click.command("trace")
@click.argument("log")
@click.option(
    "--output-path", metavar="FILE", help="JSON file for Perfetto; LOG with .perfetto.json by default."
)
@json_option
def command(log: str, output_path: str | None, json_output: bool) -> None:
    """Turn the event log LOG (--events of a run) into a timeline for ui.perfetto.dev or chrome://tracing."""
    events = list(read_events(log))
    target = output_path or str(Path(log).with_suffix(".perfetto.json"))
    if Path(target).resolve() == Path(log).resolve():
        raise UsageError(f"--output-path: expected another path than that of the log, got {target}")
    write_perfetto(target, events)
    waits = exposed_waits(events)
    text = f"{target}: {len(events)} events"
    if waits:
        edges = ", ".join(f"{a} to {b} {wait * 1e3:.3f} ms" for (a, b), wait in waits.items())
        text += f"\nexposed waits of a round, stage to stage: {edges}"
    result = {"output_path": target, "events": len(events)}
    exposed = {"exposed_seconds": {f"{a}-{b}": wait for (a, b), wait in waits.items()}} if waits else {}
    report(result | exposed, text, json_output)
