"""A live source into a session: frames at the pace of the world, with bounded delay, all accounted for."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from wavecore.control.clock import SECOND
from wavecore.control.streaming import Inbox, Intake, IntakeSettings
from wavecore.errors import WavecoreError
from wavecore.media import LiveSource
from wavecore.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Frame = NDArray[np.uint8]

_WAITING_SECONDS = 4.0  # of frames in an inbox that does not drop, before its source has to wait


@dataclass(frozen=True)
class LiveReport:
    """What happened to the frames of a live stream; times in seconds.

    Attributes
    ----------
    arrived, dropped, emitted : int
        Frames.
    damaged : int
        Packets of the source that could not be decoded.
    first : float or None
        From the arrival of the first frame to the first output.
    median, p95, worst : float or None
        Age of frames when they were put out, from their arrival, after the first second.
    late : int
        Frames put out after more than the objective.
    longest_queue : int
    oldest_waiting : float
        Longest that a frame waited for the model.
    stalls : int
        Times that the source stood still while chunks were at work.
    fault : str or None
        Why the source ended, when not by itself.
    """

    arrived: int
    dropped: int
    emitted: int
    damaged: int
    first: float | None
    median: float | None
    p95: float | None
    worst: float | None
    late: int
    longest_queue: int
    oldest_waiting: float
    stalls: int
    fault: str | None

    def text(self) -> str:
        """In one line."""
        age = (
            ""
            if self.median is None
            else f"age {self.median:.2f} s (95 % {self.p95:.2f}, {self.worst:.2f}), "
        )
        return (
            f"{self.emitted} of {self.arrived} frames, {self.dropped} dropped, {age}{self.late} late, "
            f"queue up to {self.longest_queue}"
        )


class LiveFrames(Iterator["Frame"]):
    """Frames of a live source as a session takes them; `hold`, `length` and `idle` are the session's.

    A thread reads the source. In real time it never waits: frames that the model does not keep up with are
    dropped by the rule of `Inbox`. Otherwise the source waits.

    Parameters
    ----------
    source : LiveSource
    settings : IntakeSettings
    needed : callable (bool) -> int
        Frames of the shortest chunk; of the first one when the argument is True.
    timeout : float
        Seconds without a frame after which the source counts as ended.
    clock : callable
        Nanoseconds.

    Attributes
    ----------
    age : float
        Seconds from the arrival of the latest frame put out to its output.
    """

    def __init__(
        self,
        source: LiveSource,
        settings: IntakeSettings,
        needed: Callable[[bool], int],
        timeout: float = 10.0,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._source, self._settings, self._needed = source, settings, needed
        self._trace = Trace()
        self._timeout, self._clock = timeout, clock
        self.intake = Intake(settings)
        rate = float(source.fps or 30)
        longest = settings.lengths[-1] * needed(False)
        capacity = max(2 * longest + needed(True), round(rate * _WAITING_SECONDS))
        self._inbox: Inbox[Frame] = Inbox(capacity)
        self._changed = threading.Condition()
        self._over = False
        self._fault: str | None = None
        self._taken: deque[tuple[int, int]] = deque()  # (arrival, index) of frames in the model
        self._entered = 0
        self._lengths: deque[int] = deque([1], maxlen=1 + settings.passes)  # of chunks, the newest last
        self._rows = 0
        self._round_began: int | None = None
        self._ages: list[float] = []
        self._first: float | None = None
        self._first_arrival: int | None = None
        self._emitted = self._late = self._longest = self._stalls = 0
        self._oldest_waiting = 0.0
        self.age = 0.0
        self._last_index = -1
        self._thread = threading.Thread(target=self._read, name=f"read {source.name}", daemon=True)

    def attach(self, trace: Trace) -> None:
        """Begin to read the source; what happens goes into the event log."""
        self._trace = trace
        self._thread.start()

    def close(self) -> None:
        """Stop reading."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        self._source.close()

    # -- the source's thread -------------------------------------------------------------

    def _read(self) -> None:
        try:
            for frame in self._source:
                if not self._put(frame):
                    return
            self._fault = self._fault or self._source.fault
        except WavecoreError as error:
            self._fault = str(error)
        finally:
            with self._changed:
                self._over = True
                self._changed.notify_all()

    def _put(self, frame: Frame) -> bool:
        with self._changed:
            while not self._settings.realtime and len(self._inbox) >= self._inbox.capacity and not self._over:
                self._changed.wait()
            if self._over:
                return False
            now = self._clock()
            self._first_arrival = now if self._first_arrival is None else self._first_arrival
            dropped = self._inbox.put(frame, now)
            self.intake.arrived(now)
            self._longest = max(self._longest, len(self._inbox))
            self._changed.notify_all()
        self._note_drop(dropped)
        return True

    def _note_drop(self, count: int) -> None:
        if count:
            self._trace.record("drop", track="source", frames=count, total=self._inbox.dropped)

    # -- the session's calls -------------------------------------------------------------

    def hold(self, in_flight: int) -> bool:
        """Wait until the next chunk can enter (False), or a round without one should run (True)."""
        self._observe()
        needed = self._needed(self._entered == 0)
        lengths = self._settings.lengths if self._entered else (1,)
        with self._changed:
            waiting_since = self._clock()
            dropped = self._inbox.dropped
            while True:
                now = self._clock()
                step = self.intake.decide(now, self._inbox, needed, in_flight, self._over, lengths)
                if step != "wait":
                    break
                if now - waiting_since > self._timeout * SECOND and not self._over:
                    self._over = True
                    self._fault = f"{self._source.name}: no frame for {self._timeout:g} s"
                    continue
                self._changed.wait(self._settings.stall_seconds / 2)
            if step == "enter" and len(self._inbox):
                self._entered += 1
                self._lengths.append(self.intake.length)
                oldest = self._inbox.oldest
                assert oldest is not None
                self._oldest_waiting = max(self._oldest_waiting, (self._clock() - oldest) / SECOND)
            dropped = self._inbox.dropped - dropped
            stalled = step == "advance" and now - waiting_since >= self._settings.stall_seconds * SECOND
        self._note_drop(dropped)
        if stalled:
            self._stalls += 1
            self._trace.record("wait", track="source", what="frames of the source")
        working = in_flight + (step == "enter")
        self._rows = sum(list(self._lengths)[-working:]) if working else 0
        self._round_began = self._clock()
        return step == "advance"

    def idle(self, in_flight: int) -> bool:
        """Whether `hold` would wait for the source now."""
        self._observe()
        needed = self._needed(self._entered == 0)
        with self._changed:
            return self.intake.waits(self._clock(), self._inbox, needed, in_flight, self._over)

    def length(self) -> int:
        """Length of the chunk that enters, in multiples of the shortest."""
        return self.intake.length

    def _observe(self) -> None:
        """Learn from the round that has just ended."""
        if self._round_began is not None:
            self.intake.observe(self._rows, (self._clock() - self._round_began) / SECOND)
            self._round_began = None

    def __next__(self) -> Frame:
        with self._changed:
            while not len(self._inbox) and not self._over:
                self._changed.wait()
            taken = self._inbox.take(1)
            self._changed.notify_all()
        if not taken:
            raise StopIteration
        self._taken.append((taken[0].time, taken[0].index))
        return taken[0].frame

    # -- output --------------------------------------------------------------------------

    def shown(self, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Take note that the next frames [n, h, w, 3] are put out.

        Returns
        -------
        uint8 [m, h, w, 3]
            The frames, each once and once more for every frame of the source that was dropped before it, so
            that the video keeps its speed.
        """
        now, repeats = self._clock(), []
        for _ in frames:
            arrival, index = self._taken.popleft()
            self.age = (now - arrival) / SECOND
            assert self._first_arrival is not None
            if self._first is None:
                self._first = (now - self._first_arrival) / SECOND
            self._late += self.age > self._settings.slo
            if arrival - self._first_arrival >= SECOND:
                self._ages.append(self.age)
            repeats.append(index - self._last_index)
            self._last_index = index
        self._emitted += len(frames)
        return np.repeat(frames, repeats, axis=0)

    @property
    def arrived(self) -> int:
        """Frames that the source has given."""
        return self._inbox.arrived

    @property
    def capacity(self) -> int:
        """Frames that may wait."""
        return self._inbox.capacity

    @property
    def waiting(self) -> int:
        """Frames that wait for the model."""
        return len(self._inbox)

    def report(self) -> LiveReport:
        """What happened so far."""
        ages = np.array(self._ages)
        some = len(ages) > 0
        return LiveReport(
            arrived=self._inbox.arrived,
            dropped=self._inbox.dropped,
            emitted=self._emitted,
            damaged=self._source.damaged,
            first=self._first,
            median=float(np.median(ages)) if some else None,
            p95=float(np.quantile(ages, 0.95)) if some else None,
            worst=float(ages.max()) if some else None,
            late=self._late,
            longest_queue=self._longest,
            oldest_waiting=self._oldest_waiting,
            stalls=self._stalls,
            fault=self._fault,
        )
