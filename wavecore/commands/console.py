"""What a command prints: a progress bar on a terminal, then one line or one JSON object."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click


@contextmanager
def progress(label: str, total: int | None, quiet: bool) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on standard error, if that is a terminal.

    Parameters
    ----------
    label : str
    total : int or None
        None when it is not known.
    quiet : bool
        Show nothing.

    Yields
    ------
    callable
        Takes the number of steps made since the last call.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda steps: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=total)
        yield lambda steps: bar.advance(task, steps)


def report(result: dict[str, Any], text: str, json_output: bool, to_stderr: bool = False) -> None:
    """Print the result of a command: `text`, or `result` as one JSON object."""
    click.echo(json.dumps(result, ensure_ascii=False) if json_output else text, err=to_stderr)
