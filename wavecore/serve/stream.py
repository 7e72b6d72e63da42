"""What the server needs of a stream, and how the two kinds of sessions give it.

A stream is iterated by one thread; `next` returns a group when it is due. The other methods may be called
from any thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Protocol

from wavecore.control.clock import SECOND
from wavecore.control.speculative.accounting import Totals, UpdateRecord
from wavecore.control.speculative.state import Horizon
from wavecore.errors import UsageError
from wavecore.trace import Event, Trace

if TYPE_CHECKING:
    from wavecore.interactive.session import SpeculativeSession
    from wavecore.session import FrameGroup, Session

_EVENTS = 4_096  # kept in memory of a stream


class FollowedTrace(Trace):
    """An event log in memory that passes every event on.

    Parameters
    ----------
    follow : callable
        Gets each event in the thread that records it.
    limit : int
        Events kept.
    """

    def __init__(self, follow: Callable[[Event], None], limit: int = _EVENTS) -> None:
        super().__init__(clock=time.monotonic, limit=limit)
        self._follow = follow

    def record(self, kind: Any, **data: Any) -> Event:
        """Record an event and pass it on; see `Trace.record`."""
        event = super().record(kind, **data)
        self._follow(event)
        return event


class Stream(Protocol):
    """One stream.

    Attributes
    ----------
    control : "speculative" or "free"
    size : (width, height)
    fps : float
    group : int
        Frames of a position, but of the first.
    """

    control: Any
    size: tuple[int, int]
    fps: float
    group: int

    def __next__(self) -> FrameGroup:
        """Wait for the next group to be shown; StopIteration at the end."""

    def update(self, prompt: str, transition: int) -> Future[UpdateRecord]:
        """Ask for another prompt; the future resolves when its fate is known."""

    def pause(self) -> None:
        """Stop the stream's clock."""

    def resume(self) -> None:
        """Let it go on."""

    def skip(self) -> None:
        """Let the next position be due at once."""

    @property
    def behind(self) -> float:
        """Seconds by which the clock of its events and records is behind the machine's."""

    @property
    def horizon(self) -> Horizon:
        """What can still change."""

    @property
    def totals(self) -> Totals:
        """Counts so far."""

    def close(self) -> None:
        """End it, from any thread; `next` then ends too."""


class SpeculativeStream:
    """A session under the speculative controller, which plays by itself.

    Parameters
    ----------
    session : SpeculativeSession
        With real pacing.
    size : (width, height)
    group : int
    """

    control = "speculative"

    def __init__(self, session: SpeculativeSession, size: tuple[int, int], group: int) -> None:
        self._session = session
        self.size, self.fps, self.group = size, session.fps, group

    def __next__(self) -> FrameGroup:
        return next(self._session)

    def update(self, prompt: str, transition: int) -> Future[UpdateRecord]:
        """See `Stream`."""
        return self._session.update(prompt, transition).future

    def pause(self) -> None:
        """See `Stream`."""
        self._session.pause()

    def resume(self) -> None:
        """See `Stream`."""
        self._session.resume()

    def skip(self) -> None:
        """See `Stream`."""
        self._session.skip()

    @property
    def behind(self) -> float:
        """See `Stream`."""
        return self._session.behind

    @property
    def horizon(self) -> Horizon:
        """See `Stream`."""
        return self._session.horizon

    @property
    def totals(self) -> Totals:
        """See `Stream`."""
        return self._session.totals

    def close(self) -> None:
        """See `Stream`."""
        self._session.close()


class PacedStream:
    """A free-running session, played at its frame rate: the next group is made while one is shown.

    An update is given to the session before the next group is made; of several the latest wins.

    Parameters
    ----------
    start : callable
        Makes the session from an event log.
    trace : FollowedTrace
        Gets the session's events, and commit, display, underrun and update.
    size : (width, height)
    group : int
    chunk : int
        Latents of a chunk.
    live : bool
        Groups are due as soon as they are made.
    """

    control = "free"
    behind = 0.0

    def __init__(
        self,
        start: Callable[[Trace], Session],
        trace: FollowedTrace,
        size: tuple[int, int],
        group: int,
        chunk: int,
        live: bool = False,
    ) -> None:
        self._trace = trace
        self._inner = FollowedTrace(self._follow, limit=1)
        self._session = start(self._inner)
        self.size, self.fps, self.group = size, self._session.fps, group
        self._chunk, self._live = chunk, live
        self._changed = threading.Condition()
        self._paused = self._closed = False
        self._skips = 0
        self._due: float | None = None  # of the next group; None before the first
        self._asked: tuple[str, int, UpdateRecord, Future[UpdateRecord]] | None = None
        self._open: dict[int, tuple[UpdateRecord, Future[UpdateRecord]]] = {}  # by version
        self._made = 0
        self._irrevocable = 0
        self._making = threading.Lock()
        self.totals = Totals()

    # -- for the thread that plays -------------------------------------------------------

    def __next__(self) -> FrameGroup:
        with self._making:
            if self._closed:
                raise StopIteration
            self._ask()
            began = time.monotonic_ns()
            group = next(self._session)
            self.totals.busy += time.monotonic_ns() - began
        self._made = group.index + 1
        self.totals.sampled += 1
        if not self._wait(group):
            raise StopIteration
        self._irrevocable = group.index + 1
        now = time.monotonic()
        self._trace.record("commit", group=group.index, version=group.version)
        self._trace.record("display", group=group.index, version=group.version, frames=len(group.frames))
        self.totals.played += 1
        self.totals.latest = round(now * SECOND)
        self._settle(group.version, round(now * SECOND))
        return group

    def _wait(self, group: FrameGroup) -> bool:
        """Wait until a group is due; False when the stream was closed."""
        seconds = len(group.frames) / self.fps
        with self._changed:
            now = time.monotonic()
            if self._due is None:
                self._due = now
                self.totals.began = round(now * SECOND)
            elif not self._live and self._due < now and not self._skips and not self._paused:
                self.totals.underruns += 1
                self.totals.missed_groups += 1
                self._trace.record("underrun", group=group.index, groups=1, fallback="freeze")
                self._due = now
            while not self._closed:
                now = time.monotonic()
                if self._paused:
                    self._changed.wait()
                    self._due = max(self._due, time.monotonic()) if not self._paused else self._due
                    continue
                if self._live or self._skips or self._due <= now:
                    break
                self._changed.wait(self._due - now)
            if self._skips:
                self._skips -= 1
                self._due = time.monotonic()
            self._due = (time.monotonic() if self._live else self._due) + seconds
            return not self._closed

    def _ask(self) -> None:
        with self._changed:
            asked, self._asked = self._asked, None
        if asked is not None:
            prompt, transition, record, future = asked
            record.version = self._session.update(prompt, transition)
            self._open[record.version] = record, future

    def _follow(self, event: Event) -> None:
        """Pass an event of the session on, and take the times of updates from it."""
        data = event.data
        if event.kind == "admit" and data["version"] in self._open:
            record, _ = self._open[data["version"]]
            record.start = record.start or round(event.time * SECOND)
            record.launches = 1
        elif event.kind == "ready" and data["version"] in self._open:
            record, _ = self._open[data["version"]]
            if record.ready is None:
                record.ready, record.position = round(event.time * SECOND), data["group"]
        self._trace.record(
            event.kind, time=event.time, duration=event.duration, track=event.track, **event.data
        )

    def _settle(self, version: int, now: int) -> None:
        """Close the records of what is shown and of what was passed over."""
        for asked in [v for v in self._open if v <= version]:
            record, future = self._open.pop(asked)
            if asked == version:
                record.display, record.outcome = now, "displayed"
                self.totals.displayed += 1
            else:
                record.outcome, record.by = "superseded", version
                self.totals.superseded += 1
            self._finish(record, future)

    def _finish(self, record: UpdateRecord, future: Future[UpdateRecord]) -> None:
        self._trace.record("update", **record.as_dict())
        future.set_result(record)

    # -- for every thread ----------------------------------------------------------------

    def update(self, prompt: str, transition: int) -> Future[UpdateRecord]:
        """See `Stream`."""
        future: Future[UpdateRecord] = Future()
        with self._changed:
            if self._closed:
                raise UsageError("update: expected an open stream, got a closed one")
            replaced = self._asked
            self._asked = prompt, transition, UpdateRecord(-1, time.monotonic_ns()), future
        if replaced is not None:
            _, _, record, earlier = replaced
            record.outcome = "superseded"
            self.totals.superseded += 1
            self._finish(record, earlier)
        return future

    def pause(self) -> None:
        """See `Stream`."""
        with self._changed:
            self._paused = True

    def resume(self) -> None:
        """See `Stream`."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def skip(self) -> None:
        """See `Stream`."""
        with self._changed:
            self._skips += 1
            self._changed.notify_all()

    @property
    def horizon(self) -> Horizon:
        """See `Stream`: chunks under way are locked, nothing is predicted beyond them."""
        locked = self._made + self._session.in_flight * self._chunk
        return Horizon(self._irrevocable, locked, locked)

    def close(self) -> None:
        """See `Stream`."""
        with self._changed:
            if self._closed:
                return
            self._closed = True
            self._changed.notify_all()
        with self._making:  # no group is being made any more
            self._session.close()
            lost = list(self._open.values())
            self._open.clear()
            if self._asked is not None:
                lost.append(self._asked[2:])
                self._asked = None
            for record, future in lost:
                record.outcome = "lost"
                self._finish(record, future)
