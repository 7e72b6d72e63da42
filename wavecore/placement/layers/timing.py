"""How long each layer of a rank takes, measured without waiting for the device."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch


class Clock(Protocol):
    """Marks points in the work of a device."""

    def mark(self) -> Any:
        """Mark the work given to the device so far."""

    def passed(self, mark: Any) -> bool:
        """Whether the device has done the work up to a mark."""

    def seconds(self, start: Any, end: Any) -> float:
        """Return the seconds between two marks that are passed."""


class HostClock:
    """Marks of work that is done when the call that asks for it returns."""

    mark = staticmethod(time.perf_counter)

    def passed(self, mark: float) -> bool:
        return True

    def seconds(self, start: float, end: float) -> float:
        return end - start


class CudaClock:
    """Events on the stream of a device: the host, which only launches the work, would measure launches."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))  # it may not be the current device
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        return mark.query()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        return start.elapsed_time(end) / 1000


def clock_of(device: torch.device) -> Clock:
    """The clock for layers on a device."""
    return CudaClock(device) if device.type == "cuda" else HostClock()


class LayerTimes:
    """Seconds of each layer in the last round that the device is known to have done.

    Parameters
    ----------
    clock : Clock
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._round: list[tuple[int, Any, Any]] = []  # layer, start and end, once for each batch
        self._pending: deque[list[tuple[int, Any, Any]]] = deque()
        self._known: dict[int, float] = {}

    @contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Measure one batch's way through a layer."""
        start = self._clock.mark()
        yield
        self._round.append((index, start, self._clock.mark()))

    def end_round(self, first: int, end: int) -> list[float]:
        """End a round; seconds of the layers `first` .. `end` - 1, each 0 until a round with it is done."""
        self._pending.append(self._round)
        self._round = []
        while self._pending and all(self._clock.passed(mark) for _, _, mark in self._pending[0][-1:]):
            times: dict[int, float] = {}
            for layer, start, done in self._pending.popleft():
                times[layer] = times.get(layer, 0.0) + self._clock.seconds(start, done)
            self._known |= times
        return [self._known.get(layer, 0.0) for layer in range(first, end)]
