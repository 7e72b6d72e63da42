"""What waits to be sent to one viewer: replies first, frames last, everything bounded.

The server holds no more for a viewer who does not read than for one who does: requests are not read while
replies wait, of the state only the latest is kept, and a group for which there is no room is left out.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable

from wavecore.serve.encode import EncodedGroup
from wavecore.serve.protocol import Ended, Frame, Record, Reply, State

Message = Reply | Record | State | Frame | Ended

_REPLIES = 64  # that wait before requests are left unread
_RECORDS = 64
_STATE_SECONDS = 0.1  # between states


class Outbox:
    """Queues of one connection. Belongs to the event loop's thread.

    Parameters
    ----------
    state : callable
        Makes the state when it is about to be sent.
    clock : callable
        Seconds.
    groups : int
        Groups that may be under way: sent and not yet received, or waiting.
    size : int
        Bytes that may be under way.

    Attributes
    ----------
    dropped : int
        Groups left out for want of room.
    sent : int
        Frames numbered so far.
    """

    def __init__(
        self,
        state: Callable[[], State],
        clock: Callable[[], float],
        groups: int = 8,
        size: int = 4 * 1024 * 1024,
    ) -> None:
        self.dropped = 0
        self.sent = 0
        self._state, self._clock = state, clock
        self._groups, self._size = groups, size
        self._replies: deque[Reply] = deque()
        self._records: deque[Record] = deque(maxlen=_RECORDS)
        self._frames: deque[Frame] = deque()
        self._under_way: deque[tuple[int, int]] = deque()  # last frame number and bytes of groups
        self._state_due: float | None = None
        self._state_sent = float("-inf")
        self._wake = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._closed = False
        self._last: Ended | None = None

    def reply(self, message: Reply) -> None:
        """Queue an answer; sent before everything else."""
        self._replies.append(message)
        if len(self._replies) >= _REPLIES:
            self._room.clear()
        self._wake.set()

    def record(self, record: Record) -> None:
        """Queue a record; of too many the oldest go."""
        self._records.append(record)
        self._wake.set()

    def changed(self) -> None:
        """Have the state sent, if it was not just now."""
        if self._state_due is None and not self._closed:
            self._state_due = max(self._clock(), self._state_sent + _STATE_SECONDS)
            self._wake.set()

    def offer(self, group: EncodedGroup, commit: tuple[int, int, int], replay: bool) -> range:
        """Queue the frames of a group, or leave the whole group out.

        Returns
        -------
        range
            Their numbers; empty when it was left out.
        """
        waiting = sum(size for _, size in self._under_way)
        full = len(self._under_way) >= self._groups
        if full or (self._under_way and waiting + group.size > self._size):
            self.dropped += 1
            return range(0)
        first, count = self.sent, len(group.units)
        self.sent += count
        for index, unit in enumerate(group.units):
            self._frames.append(
                Frame(
                    number=first + index,
                    position=group.position,
                    frame=index,
                    frames=count,
                    version=group.version,
                    pts=group.pts + index * group.spacing,
                    ready=group.ready,
                    due=group.due + index * group.spacing,
                    commit=commit,
                    replay=replay,
                    key=index == 0,
                    data=unit,
                )
            )
        self._under_way.append((self.sent - 1, group.size))
        self._wake.set()
        return range(first, self.sent)

    def received(self, number: int) -> None:
        """Take note that frames up to `number` have arrived."""
        while self._under_way and self._under_way[0][0] <= number:
            self._under_way.popleft()

    def close(self, last: Ended | None = None) -> None:
        """Let `next` end once everything is out, with `last` behind it."""
        self._closed, self._last = True, last
        self._state_due = None  # its session may be gone
        self._wake.set()

    async def room(self) -> None:
        """Wait until there is room for further replies."""
        await self._room.wait()

    async def next(self) -> Message | None:
        """Wait for what is to be sent next; None when closed."""
        while True:
            if self._replies:
                message = self._replies.popleft()
                if len(self._replies) < _REPLIES:
                    self._room.set()
                return message
            if self._records:
                return self._records.popleft()
            now = self._clock()
            if self._state_due is not None and self._state_due <= now:
                self._state_due, self._state_sent = None, now
                return self._state()
            if self._frames:
                return self._frames.popleft()
            if self._closed:
                last, self._last = self._last, None
                return last
            self._wake.clear()
            delay = None if self._state_due is None else self._state_due - now
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except asyncio.TimeoutError:
                continue
