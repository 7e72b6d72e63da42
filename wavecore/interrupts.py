"""Signals that ask a program to stop: one is enough, and others cut nothing short that saves the work.

They come in groups: a person presses Ctrl-C again, a supervisor sends SIGTERM and SIGHUP together.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_TOGETHER_SECONDS = 1.0


class Interrupt:
    """A signal handler: KeyboardInterrupt, once for all signals that come within a second.

    Between the place where it is raised and the one that completes the output, the exception passes through
    code that another one would keep from releasing its locks.

    Parameters
    ----------
    clock : callable
        Returns the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until = -float("inf")

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        now = self._clock()
        if now >= self._until:
            self._until = now + _TOGETHER_SECONDS
            raise KeyboardInterrupt


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Run a block to its end: signals that Python handles are handled after it.

    For what is short and must be whole. Signals come to the main thread alone; another one runs the block as
    it is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[tuple[int, FrameType | None]] = []
    held: dict[int, Callable[[int, FrameType | None], object]] = {}
    for number in SIGNALS:
        handler = signal.getsignal(number)
        if callable(handler):
            held[number] = handler
            signal.signal(number, lambda sent, frame: came.append((sent, frame)))
    try:
        yield
    finally:
        for sent, first in held.items():
            signal.signal(sent, first)
        for sent, frame in came:
            held[sent](sent, frame)
