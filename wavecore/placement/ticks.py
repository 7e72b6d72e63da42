"""When the ranks of a wavefront go on: a tick begins with each chunk that enters, or without one to drain."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Ticks:
    """Numbers the ticks of all streams, from 1.

    Parameters
    ----------
    steps : int
        Denoising stages: a chunk is stored as many ticks after it has entered.
    go_on : callable
        Tells every rank that a tick begins in which no chunk enters.

    Attributes
    ----------
    entered : int
        Tick in which a chunk has entered last.
    """

    def __init__(self, steps: int, go_on: Callable[[], None]) -> None:
        self._steps, self._go_on = steps, go_on
        self._lock = threading.Lock()
        self._next = 1
        self.entered = -steps
        self._wanted = 0
        self._expecting = False  # whether a stream has begun and may go on

    @contextmanager
    def entering(self) -> Iterator[int]:
        """Let a chunk enter: within it, every rank is told of the tick, whose number this gives."""
        with self._lock:
            yield self._next
            self.entered = self._next
            self._next += 1
            self._expecting = True

    def wanted(self, tick: int) -> None:
        """A rank has nothing more to do before this tick, and something to do in it."""
        with self._lock:
            self._wanted = max(self._wanted, tick)
            self._drain()

    @contextmanager
    def leaving(self) -> Iterator[None]:
        """Let no further chunk enter of the stream that has begun last: within it, every rank is told so."""
        with self._lock:
            yield
            self._expecting = False
            self._drain()

    def _drain(self) -> None:
        """Go on with what is under way, when somebody waits for it and no chunk has come meanwhile."""
        if not self._expecting and self._wanted == self._next <= self.entered + self._steps:
            self._go_on()
            self._next += 1
