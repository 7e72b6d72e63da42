"""Time as control sees it: whole nanoseconds of one clock, real or virtual, with a queue of what is to come.

Whole numbers make sums of times exact, so that a deadline which is met exactly is met, and a simulation
and a replay give the same numbers everywhere.
"""

from __future__ import annotations

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable
from fractions import Fraction
from typing import Generic, Protocol, TypeVar

from wavecore.errors import UsageError

SECOND = 1_000_000_000
MILLISECOND = 1_000_000

Item = TypeVar("Item")


def nanoseconds(seconds: float | Fraction, name: str = "seconds") -> int:
    """Convert a finite duration that is not negative.

    Raises
    ------
    UsageError
        NaN, infinite or negative; names the argument.
    """
    if not math.isfinite(seconds) or seconds < 0:
        raise UsageError(f"{name}: expected a finite number of seconds, 0 or more, got {seconds}")
    return round(seconds * SECOND)


def in_milliseconds(time: int) -> str:
    """Nanoseconds as people read them."""
    return f"{time / MILLISECOND:.1f} ms"


class Clock(Protocol[Item]):
    """A clock with a queue. Control code that sees time through it alone can run in virtual time."""

    def now(self) -> int:
        """Return the time in nanoseconds from an arbitrary origin."""

    def post(self, item: Item, delay: int = 0, rank: int = 0) -> None:
        """Queue an item, to be taken `delay` nanoseconds from now.

        Items due at the same time are taken in order of `rank`, then in the order of posting.
        """

    def wait(self, until: int | None = None) -> tuple[int, Item | None]:
        """Take the next item that is due by `until`, waiting for it.

        Returns
        -------
        (int, item or None)
            The time, and None if it became `until` without an item.
        """


class _Queue(Generic[Item]):
    """Items by (time, rank, order of posting)."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, int, Item]] = []
        self._order = itertools.count()

    def push(self, at: int, rank: int, item: Item) -> None:
        heapq.heappush(self._heap, (at, rank, next(self._order), item))

    def due(self) -> int | None:
        """Time of the first item."""
        return self._heap[0][0] if self._heap else None

    def pop(self) -> Item:
        return heapq.heappop(self._heap)[3]


class VirtualClock(Generic[Item]):
    """A clock that jumps to the next item: a simulation's time.

    Parameters
    ----------
    start : int
        Nanoseconds.
    """

    def __init__(self, start: int = 0) -> None:
        self._now = start
        self._queue: _Queue[Item] = _Queue()

    def now(self) -> int:
        """Return the virtual time."""
        return self._now

    def post(self, item: Item, delay: int = 0, rank: int = 0) -> None:
        """Queue an item; see `Clock.post`."""
        self._queue.push(self._now + max(delay, 0), rank, item)

    def wait(self, until: int | None = None) -> tuple[int, Item | None]:
        """Jump to the next item, or to `until`; an item due at `until` comes first.

        Raises
        ------
        RuntimeError
            Nothing is queued and `until` is None: nothing would ever happen.
        """
        due = self._queue.due()
        if due is not None and (until is None or due <= until):
            self._now = max(self._now, due)
            return self._now, self._queue.pop()
        if until is None:
            raise RuntimeError("wait: nothing is queued, so virtual time cannot go on")
        self._now = max(self._now, until)
        return self._now, None


class WallClock(Generic[Item]):
    """The monotonic clock of the machine, which can be stopped; `post` may be called from any thread.

    Parameters
    ----------
    read : callable
        Returns nanoseconds. A reading that goes backwards is held at the latest one.
    """

    def __init__(self, read: Callable[[], int] = time.monotonic_ns) -> None:
        self._read = read
        self._latest = read()
        self._behind = 0  # by how much it is behind what is read
        self._paused = False
        self._queue: _Queue[Item] = _Queue()
        self._changed = threading.Condition()

    def now(self) -> int:
        """Return the time since an arbitrary origin."""
        with self._changed:
            return self._advance()

    def post(self, item: Item, delay: int = 0, rank: int = 0) -> None:
        """Queue an item; see `Clock.post`."""
        with self._changed:
            self._queue.push(self._advance() + max(delay, 0), rank, item)
            self._changed.notify()

    def wait(self, until: int | None = None) -> tuple[int, Item | None]:
        """Sleep until an item is due or the time is `until`; see `Clock.wait`.

        The time returned with an item is the one it was due at, so that a busy taker does not distort it;
        times never go backwards from one call to the next.
        """
        with self._changed:
            while True:
                now, due = self._advance(), self._queue.due()
                if due is not None and due <= now and (until is None or due <= until):
                    return due, self._queue.pop()
                if until is not None and until <= now:
                    return (now if due is None else min(now, max(due, until))), None
                next_time = min((t for t in (due, until) if t is not None), default=None)
                if self._paused or next_time is None:
                    self._changed.wait()
                else:
                    self._changed.wait((next_time - now) / SECOND)

    @property
    def behind(self) -> int:
        """Nanoseconds by which it is behind the machine's clock, from pauses."""
        with self._changed:
            self._advance()
            return self._read() - self._latest if self._paused else self._behind

    def pause(self) -> None:
        """Stop: the time stays as it is, and only what is due already is taken."""
        with self._changed:
            self._advance()
            self._paused = True

    def resume(self) -> None:
        """Go on from the time at which it was stopped."""
        with self._changed:
            if self._paused:
                self._paused = False
                self._behind = self._read() - self._latest
                self._changed.notify()

    def advance(self, by: int) -> None:
        """Go on by `by` nanoseconds at once."""
        with self._changed:
            self._latest = self._advance() + by
            self._behind -= by
            self._changed.notify()

    def _advance(self) -> int:
        if not self._paused:
            self._latest = max(self._latest, self._read() - self._behind)
        return self._latest
