"""Changes of a page table between rounds, as data: copies of a table that get the same ones stay the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from wavecore.cache.table import PageTable, Suffix

Action = Literal["keep", "drop", "cut", "restore", "discard"]


class Edit(NamedTuple):
    """One change.

    Attributes
    ----------
    action : "keep", "drop", "cut", "restore" or "discard"
        Forget all but the clean keys and values of some chunks; forget some chunks; take the pages from a
        position on out and put them on a shelf; put back what is on a shelf; give its pages back.
    numbers : tuple of int
        Chunks; for "cut" the position and the number of the shelf, for "restore" and "discard" the latter.
    """

    action: Action
    numbers: tuple[int, ...]


class Edits:
    """Applies changes to a table, and holds what was cut off it.

    Parameters
    ----------
    table : PageTable
        Of a stream whose chunks are named by the temporal index of their first latent.
    """

    def __init__(self, table: PageTable) -> None:
        self._table = table
        self._shelves: dict[int, Suffix] = {}

    def apply(self, edits: Iterable[Edit], steps: int) -> None:
        """Make changes in order; keys and values of stage `steps` are the clean ones."""
        table = self._table
        for action, numbers in edits:
            if action == "keep":
                table.drop([key for key in table if key.stage < steps or key.chunk not in numbers])
            elif action == "drop":
                table.drop([key for key in table if key.chunk in numbers])
            elif action == "cut":
                position, shelf = numbers
                self._shelves[shelf] = table.cut(position)
            elif action == "restore":
                table.restore(self._shelves.pop(numbers[0]))
            else:
                table.discard(self._shelves.pop(numbers[0]))
