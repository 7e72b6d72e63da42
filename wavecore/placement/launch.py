"""How the library starts processes of its own."""

from __future__ import annotations

import sys
from pathlib import Path

import wavecore


def module_command(module: str) -> list[str]:
    """Command that runs a module of this very package, whatever package lies in the working directory."""
    root = str(Path(wavecore.__file__).resolve().parents[1])
    code = (
        f"import runpy, sys; sys.path[:] = [{root!r}, *filter(None, sys.path)]; "
        f"runpy.run_module({module!r}, run_name='__main__', alter_sys=True)"
    )
    return [sys.executable, "-c", code]
