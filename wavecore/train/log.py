"""Who is told about the rows of a training log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

OnLog = Callable[[dict[str, Any]], None]


def ignore(row: dict[str, Any]) -> None:
    """Nobody is."""
