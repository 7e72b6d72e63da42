"""How the library starts processes of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import wavecore


def module_command(module: str) -> list[str]:
    """Command that runs a module of this very package, whatever package lies in the working directory."""
    root = str(Path(wavecore.__file__).resolve().parents[1])
    code = (
        f"import runpy, sys; sys.path[:] = [{root!r}, *filter(None, sys.path)]; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]


def start_module(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None, **options: Any
) -> subprocess.Popen[bytes]:
    """Start a module of this package as a process that no signal of a terminal reaches.

    A terminal sends its interrupt and its end to every process of a group, and the process that starts others
    is the one to say what they mean. They are blocked before the process begins, so that none comes while it
    still loads.

    Parameters
    ----------
    module : str
    *arguments
        Of its command line, as text.
    environment : mapping, optional
        That of this process when not given. PyTorch's warnings, which a neighbour's end causes, are left out
        unless it asks for them.
    **options
        As of `subprocess.Popen`.
    """
    variables = {"TORCH_CPP_LOG_LEVEL": "ERROR", **(os.environ if environment is None else environment)}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    try:
        command = [*module_command(module), *map(str, arguments)]
        return subprocess.Popen(command, env=variables, **options)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
