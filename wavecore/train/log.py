"""When training logs write a row, and who is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnLog = Callable[[dict[str, Any]], None]
LOG_EVERY = 50  # steps a row; the last row of a run comes at its end


def ignore(row: dict[str, Any]) -> None:
    """Nobody is."""
