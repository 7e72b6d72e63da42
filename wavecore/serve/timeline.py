"""What a viewer's timeline strip shows, followed from the event log of the stream."""

from __future__ import annotations

import threading

from wavecore.trace import Event

_PAST = 64  # positions behind the cursor that keep their version
_RUNS = 256  # invalidated runs kept for the next state


class Timeline:
    """Follows the events of one stream; fed by its threads, read by the server's.

    Attributes
    ----------
    cursor : int
        Next position to play.
    version : int
        Latest version asked for.
    """

    def __init__(self) -> None:
        self.cursor = 0
        self.version = 0
        self._lock = threading.Lock()
        self._versions: dict[int, int] = {}
        self._invalidated: list[tuple[int, int]] = []

    def follow(self, event: Event) -> bool:
        """Take note of an event; returns whether it changed what is shown."""
        data = event.data
        with self._lock:
            if event.kind == "prompt":
                self.version = max(self.version, data["version"])
            elif event.kind == "launch":
                first = data["group"]
                for position in [p for p in self._versions if p >= first]:
                    del self._versions[position]
                for position in range(first, first + data["groups"]):
                    self._versions[position] = data["version"]
            elif event.kind == "discard":
                if data["end"] > data["first"]:
                    self._invalidated.append((data["first"], data["end"]))
                    del self._invalidated[:-_RUNS]
            elif event.kind == "ready" and "version" in data:
                self._versions[data["group"]] = data["version"]
            elif event.kind == "display":
                self.cursor = data["group"] + 1
                self._versions[data["group"]] = data["version"]
                for position in [p for p in self._versions if p < self.cursor - _PAST]:
                    del self._versions[position]
            else:
                return event.kind in ("commit", "underrun", "update")
        return True

    def runs(self) -> list[tuple[int, int, int]]:
        """Positions as (first, end, version), in order."""
        with self._lock:
            entries = sorted(self._versions.items())
        runs: list[tuple[int, int, int]] = []
        for position, version in entries:
            if runs and runs[-1][1] == position and runs[-1][2] == version:
                runs[-1] = (runs[-1][0], position + 1, version)
            else:
                runs.append((position, position + 1, version))
        return runs

    def take_invalidated(self) -> list[tuple[int, int]]:
        """Runs that were replaced since the last call."""
        with self._lock:
            taken, self._invalidated = self._invalidated, []
        return taken
