"""Processes of the device report: rows as they come, an end to what hangs, a start behind what broke."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

from device_sections import BROKEN, MARK

STARTING_SECONDS = 90.0  # imports, and the inputs of a section


class Section:
    """Runs the items of a section in a process, and starts another behind an item that ended or hung it.

    Parameters
    ----------
    command : list of str
        Starts the process; `--skip N` is added.
    seconds, item_seconds : float
        Limits of the section and of an item.
    starts : int
        Processes at most.
    environment : dict, optional
        Variables besides those of this process.
    """

    def __init__(
        self,
        command: list[str],
        seconds: float,
        item_seconds: float,
        starts: int = 6,
        environment: dict[str, str] | None = None,
    ) -> None:
        self._command, self._item_seconds, self._starts = command, item_seconds, starts
        self._environment = {**os.environ, **(environment or {})}
        self._deadline = time.monotonic() + seconds
        self._items: list[str] = []
        self._begun = 0

    def rows(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Name and result of each item; a result may be a problem, or why the item was left out."""
        for _ in range(self._starts):
            before = self._begun
            ended = yield from self._process()
            late = time.monotonic() >= self._deadline
            if ended or late or self._begun == before:
                break
        for item in self._items[self._begun :]:
            yield item, {"left_out": "the time was up" if late else "the processes before it ended"}

    def _process(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Rows of one process. Returns whether the section is over."""
        with tempfile.TemporaryFile("w+") as errors:
            process = subprocess.Popen(
                [*self._command, "--skip", str(self._begun)],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=self._environment,
                start_new_session=True,
            )
            lines: queue.Queue[str | None] = queue.Queue()
            assert process.stdout is not None
            threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
            item, limit = None, STARTING_SECONDS
            try:
                while True:
                    left = self._deadline - time.monotonic()
                    try:
                        text = lines.get(timeout=max(0.0, min(limit, left)))
                    except queue.Empty:
                        yield item or "start", {"problem": f"no result within {min(limit, left):.0f} s"}
                        return item is None
                    if text is None:
                        break
                    message = json.loads(text)
                    self._items = message.get("items", self._items)
                    if "begin" in message:
                        item, limit = message["begin"], self._item_seconds
                        self._begun += 1
                    elif "row" in message and item is not None:
                        yield item, message["row"]
                        item = None
                code = process.wait()
                if code not in (0, BROKEN) or item is not None:
                    errors.seek(0)
                    said = errors.read()[-600:].strip()
                    yield item or "start", {"problem": f"the process ended with code {code}: {said}"}
                return code == 0
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def _read(stream: IO[str], lines: queue.Queue[str | None]) -> None:
    for text in stream:
        if text.startswith(MARK):
            lines.put(text[len(MARK) :])
    lines.put(None)
