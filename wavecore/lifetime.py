"""What becomes of processes and threads whose owner is closed, or gone without that."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any


class Belongings:
    """What ends with its owner: when that is closed, or once it is garbage-collected.

    At the end of the program nothing is done: processes notice by themselves that their parent has gone.

    Parameters
    ----------
    owner : object
        Nothing that lives longer may refer to it, what belongs to it least of all; see `weakly`.
    """

    def __init__(self, owner: object) -> None:
        self._stack = ExitStack()
        self._finalizer = weakref.finalize(owner, _in_thread, self._stack.close)
        self._finalizer.atexit = False

    def add(self, end: Callable[[], object]) -> None:
        """Have `end` called; what was added last ends first."""
        self._stack.callback(end)

    def close(self) -> None:
        """End everything, once."""
        self._finalizer.detach()
        self._stack.close()


def _in_thread(end: Callable[[], object]) -> None:
    # An object may go at any instruction of any thread, also of one that holds what is waited for here. No
    # daemon: an interpreter that ends while a thread is within PyTorch aborts.
    threading.Thread(target=end, name="wavecore-end").start()


def weakly(method: Callable[..., object]) -> Callable[..., None]:
    """A bound method as a function that keeps its object not alive, and does nothing once that is gone."""
    weak = weakref.WeakMethod(method)

    def call(*arguments: Any) -> None:
        found = weak()
        if found is not None:
            found(*arguments)

    return call
