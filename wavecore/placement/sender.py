"""Messages to a process that reads them when it has time, without waiting for it."""

from __future__ import annotations

import select
import threading
from collections import deque
from contextlib import suppress
from multiprocessing.connection import Connection

# A socket that is ready for more has room for this.
_SMALL = 4096


class Sender:
    """Sends messages in order, and never makes the caller wait until they are read.

    A short one goes at once where there is room. A thread sends the others, and what comes before those are
    through.

    Parameters
    ----------
    connection : Connection
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLOUT)
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()  # what the thread sends, until it is sent
        self._closed = False
        self._thread: threading.Thread | None = None

    def send(self, data: bytes) -> None:
        """Send a message; nothing where the other side has ended."""
        with self._changed:
            if self._closed:
                return
            if not self._waiting and len(data) <= _SMALL and self._poll.poll(0):
                with suppress(OSError):
                    self._connection.send_bytes(data)
                return
            self._waiting.append(data)
            if self._thread is None:
                self._thread = threading.Thread(target=self._serve, daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting)
                if self._closed:
                    return
                data = self._waiting[0]
            try:
                self._connection.send_bytes(data)
            except OSError:
                self.close()
                return
            with self._changed:
                if self._waiting:
                    self._waiting.popleft()
                self._changed.notify_all()

    def flush(self, timeout: float) -> None:
        """Wait until all is sent, `timeout` seconds at most."""
        with self._changed:
            self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        """Send no more. What the thread is at ends with the connection."""
        with self._changed:
            self._closed = True
            self._waiting.clear()
            self._changed.notify_all()
