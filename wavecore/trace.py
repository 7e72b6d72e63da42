"""The event log of a run: one timeline that metrics, Perfetto, the web page and the tests read.

A log is JSON lines, one `Event` a line, in the order in which the events were recorded. Every line is
complete as soon as `Trace.record` returns, so a run that is killed leaves a readable log.
"""

from __future__ import annotations

import errno
import importlib
import importlib.util
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, get_args

import msgspec

from wavecore.errors import InputError
from wavecore.files import check_output, complete_or_nothing, write_error

if TYPE_CHECKING:
    from typing_extensions import Self

Kind = Literal[
    "run",  # the run begins: versions and settings
    "prompt",  # a new prompt version was asked for
    "admit",  # a chunk was given a slot, with the prompt version it will follow
    "text",  # a prompt was encoded
    "encode",  # source frames became latents
    "noise",  # a chunk was given the noise that its motion asks for
    "sink",  # a chunk took the place of a sink
    "drop",  # frames of a live source were dropped, since the model does not keep up
    "move",  # layers went from one rank to another
    "round",  # one round of denoising
    "publish",  # a layer's keys and values became readable for other slots
    "wait",  # work stood still for something it needs
    "attend",  # a layer's attention, from when everything it reads was there
    "decode",  # latents became frames
    "ready",  # a group of frames is complete
    "commit",  # a group can no longer be replaced
    "display",  # a group was shown, sent or written
    "underrun",  # a group was due and not ready
    "supersede",  # a group not yet committed was replaced by one of a newer prompt version
    "discard",  # work was thrown away
    "begin",  # playback got its start
    "launch",  # a job was started at a position, under a version
    "job",  # one job, from launch to end
    "cancel",  # a job was told to end
    "decide",  # the dispatch rule was evaluated: what was chosen, and which guard failed elsewhere
    "update",  # what became of an update: its record
    "late",  # a group was complete after its deadline
    "fallback",  # a loss was covered: freeze, drop, restore, ...
    "ignore",  # an event changed nothing
    "stop",  # a call did not run to its end: how many of its steps were made, and what cut it
    "session",  # a session begins: all that makes it repeatable
    "input",  # the speculative controller was told something: what replay tells it again
    "finish",  # the run ends
]
KINDS: tuple[str, ...] = get_args(Kind)


class Event(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Something that happened at a time.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    time : float
        Start, in seconds of the clock of the trace.
    duration : float
        Seconds; 0 for an instant.
    track : str
        Where it happened: a device, a stage, a thread. One row in a timeline.
    data : dict
        What it was about: chunk, stage, group, version, layer, frames, ...
    """

    kind: Kind
    time: float
    duration: float = 0.0
    track: str = "main"
    data: dict[str, Any] = {}


class Trace:
    """Record events, from any thread, into memory or a file.

    Parameters
    ----------
    path : path, optional
        JSON lines file to write, replacing an existing one. Left out: events are kept in memory.
    clock : callable, optional
        Returns the time in seconds; a virtual clock makes the log that of a simulation.
    limit : int
        In memory, only the latest `limit` events are kept, so that an endless stream needs bounded memory.

    Raises
    ------
    InputError
        The file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None = None,
        clock: Callable[[], float] = time.perf_counter,
        limit: int = 8_192,
    ) -> None:
        self.clock = clock
        self.path = None if path is None else check_output(path)
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._events: deque[Event] = deque(maxlen=limit)
        self._file: BinaryIO | None = None
        self._nvtx = importlib.import_module("nvtx") if importlib.util.find_spec("nvtx") else None
        if self.path is not None:
            try:
                self._file = self.path.open("wb", buffering=0)
            except OSError as error:
                raise write_error(self.path, error) from None

    def record(
        self,
        kind: Kind,
        *,
        time: float | None = None,
        duration: float = 0.0,
        track: str = "main",
        **data: Any,
    ) -> Event:
        """Record one event.

        Parameters
        ----------
        kind : str
            One of `KINDS`.
        time : float, optional
            Start in seconds of the clock; now when left out.
        duration : float
            Seconds.
        track : str
        **data
            JSON values.

        Raises
        ------
        ValueError
            Unknown kind.
        InputError
            The log cannot be written (disk full, ...).
        """
        if kind not in KINDS:
            raise ValueError(f"kind: expected one of {', '.join(KINDS)}, got {kind!r}")
        event = Event(kind, self.clock() if time is None else time, duration, track, data)
        line = b"" if self.path is None else self._encoder.encode(event) + b"\n"
        with self._lock:
            if self.path is None:
                self._events.append(event)
            elif self._file is not None:
                try:
                    if self._file.write(line) != len(line):  # the rest of the disk was shorter than the line
                        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                except OSError as error:
                    raise write_error(self.path, error) from None
        return event

    @contextmanager
    def span(self, kind: Kind, track: str = "main", **data: Any) -> Iterator[dict[str, Any]]:
        """Record the time that a block takes, as host time; also an NVTX range when nvtx is installed.

        Yields
        ------
        dict
            The event's data; the block may add to it.
        """
        start = self.clock()
        if self._nvtx is not None:
            self._nvtx.push_range(kind)
        try:
            yield data
        finally:
            if self._nvtx is not None:
                self._nvtx.pop_range()
            self.record(kind, time=start, duration=self.clock() - start, track=track, **data)

    @property
    def events(self) -> list[Event]:
        """The events so far, in the order of recording."""
        with self._lock:
            if self.path is None:
                return list(self._events)
        return list(read_events(self.path))

    def close(self) -> None:
        """Close the file; what is recorded afterwards is dropped."""
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: str | os.PathLike[str]) -> Iterator[Event]:
    """Read a log line by line.

    A last line without an end, as a killed run may leave it, is left out.

    Raises
    ------
    InputError
        The file cannot be read, or a line is not an event; names the file and the line.
    """
    path = Path(path)
    decoder = msgspec.json.Decoder(Event)
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decoder.decode(line)
                except msgspec.DecodeError as error:
                    raise InputError(f"{path}: line {number}: expected an event, got: {error}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot read: {error.strerror}") from None


def to_perfetto(events: Iterable[Event]) -> dict[str, Any]:
    """Turn events into the Chrome trace event format, which Perfetto and chrome://tracing open.

    Each track becomes a row, in order of first appearance; events with a duration become slices, others
    instants. Times are microseconds from the earliest event.

    Returns
    -------
    dict
        For ``json.dump``. The format is Google's "Trace Event Format", JSON object form.
    """
    events = sorted(events, key=lambda event: event.time)
    origin = events[0].time if events else 0.0
    rows = {track: row for row, track in enumerate(dict.fromkeys(event.track for event in events), 1)}
    output: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "wavecore"}},
        *(
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": row, "args": {"name": track}}
            for track, row in rows.items()
        ),
    ]
    for event in events:
        entry: dict[str, Any] = {
            "name": event.kind,
            "cat": "wavecore",
            "ts": (event.time - origin) * 1e6,
            "pid": 1,
            "tid": rows[event.track],
            "args": event.data,
        }
        if event.duration > 0:
            entry |= {"ph": "X", "dur": event.duration * 1e6}
        else:
            entry |= {"ph": "i", "s": "t"}
        output.append(entry)
    return {"traceEvents": output, "displayTimeUnit": "ms"}


def exposed_waits(events: Iterable[Event]) -> dict[tuple[int, int], float]:
    """Seconds a round that a stage stood still for another, by edge (writer, reader), all layers together.

    A layer's wait is what the transfer of its keys and values takes longer than the reader comes later,
    max(0, tau - Delta): 0 where it is hidden.
    """
    waited: dict[tuple[int, int], float] = {}
    rounds: dict[tuple[int, int], set[int]] = {}
    for event in events:
        if event.kind == "wait" and "edge" in event.data:
            edge = event.data["edge"][0], event.data["edge"][1]
            waited[edge] = waited.get(edge, 0.0) + event.data["exposed"]
            rounds.setdefault(edge, set()).add(event.data["round"])
    return {edge: total / len(rounds[edge]) for edge, total in sorted(waited.items())}


def write_perfetto(path: str | os.PathLike[str], events: Iterable[Event]) -> None:
    """Write `to_perfetto` to a file."""
    encoded = msgspec.json.encode(to_perfetto(events))
    with complete_or_nothing(path) as pending:
        pending.write_bytes(encoded)
