"""Frames that wait for the model: a bounded queue that thins itself out by rule and counts what it drops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

from wavecore.errors import UsageError

Frame = TypeVar("Frame")


@dataclass(frozen=True)
class Arrival(Generic[Frame]):
    """A frame of a live source.

    Attributes
    ----------
    frame
        What arrived.
    index : int
        Number of the frame in the source, from 0.
    time : int
        When it arrived, in nanoseconds of the stream's clock.
    """

    frame: Frame
    index: int
    time: int


class Inbox(Generic[Frame]):
    """Frames between a live source and the model.

    When it is full, or holds more than the model takes next, those frames stay whose times are nearest to
    even spacing from the last frame taken to the newest, so that motion stays even. The newest frame always
    stays. Not synchronised.

    Parameters
    ----------
    capacity : int
        Frames that wait at most.

    Attributes
    ----------
    arrived, dropped : int
        Frames so far.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise UsageError(f"capacity: expected at least 1, got {capacity}")
        self.capacity = capacity
        self.arrived = 0
        self.dropped = 0
        self._waiting: list[Arrival[Frame]] = []
        self._left_at = 0  # arrival of the latest frame taken: the first gap counts from it

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def oldest(self) -> int | None:
        """Arrival of the frame that has waited longest."""
        return self._waiting[0].time if self._waiting else None

    @property
    def times(self) -> list[int]:
        """Arrivals of the frames that wait, oldest first."""
        return [arrival.time for arrival in self._waiting]

    def put(self, frame: Frame, time: int) -> int:
        """Add a frame that arrived at `time`; returns how many frames were dropped for it."""
        if self._waiting and time < self._waiting[-1].time:
            raise UsageError(f"time: expected at least {self._waiting[-1].time}, got {time}")
        if not self.arrived:
            self._left_at = time
        self._waiting.append(Arrival(frame, self.arrived, time))
        self.arrived += 1
        return self.thin(self.capacity)

    def thin(self, count: int) -> int:
        """Drop frames until `count` (at least 1) are left; returns how many went."""
        if count < 1:
            raise UsageError(f"count: expected at least 1, got {count}")
        waiting = self._waiting
        surplus = max(0, len(waiting) - count)
        if surplus:
            step = (waiting[-1].time - self._left_at) / count
            self._waiting, place = [], 0
            for number in range(1, count + 1):
                aim = self._left_at + number * step
                last = len(waiting) - (count - number)  # leaves a frame for each further one
                place = min(range(place, last), key=lambda i: abs(waiting[i].time - aim)) + 1
                self._waiting.append(waiting[place - 1])
            self.dropped += surplus
        return surplus

    def take(self, count: int) -> list[Arrival[Frame]]:
        """Remove and return the `count` oldest frames, or all there are if those are fewer."""
        taken, self._waiting = self._waiting[:count], self._waiting[count:]
        if taken:
            self._left_at = taken[-1].time
        return taken
