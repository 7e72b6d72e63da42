"""When the next chunk of a live stream enters, and what is dropped before it. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wavecore.control.clock import SECOND
from wavecore.control.streaming.batching import BatchingController, BatchingSettings
from wavecore.control.streaming.inbox import Inbox
from wavecore.errors import UsageError

Step = Literal["enter", "advance", "wait"]

_BUSY = 0.9  # of the time from chunk to chunk: what passes may take for chunks to go through one by one


@dataclass(frozen=True, kw_only=True)
class IntakeSettings:
    """Objective and rules of a live stream.

    Attributes
    ----------
    slo : float
        Seconds from the arrival of a frame to its output.
    passes : int
        Denoising steps that a chunk goes through.
    realtime : bool
        Drop frames of the source rather than fall behind it.
    stall_seconds : float
        Without a new frame for so long, chunks at work go on without waiting for more.
    lengths : tuple of int
        What the length of a chunk is chosen from, T, rising, in multiples of the shortest chunk.
    """

    slo: float = 1.0
    passes: int = 1
    realtime: bool = True
    stall_seconds: float = 0.5
    lengths: tuple[int, ...] = (1,)

    def __post_init__(self) -> None:
        for name in ("slo", "passes", "stall_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name}: expected a number above 0, got {getattr(self, name)}")


class Intake:
    """Decides for one stream over an inbox.

    A chunk enters as soon as its frames are there. While they are not, the chunks at work go on without it
    if passes are short enough that every chunk can be taken through all levels by itself, which gives the
    least delay; otherwise all levels wait for it and run as one batch, which gives the most frames a second.

    The length of a chunk is the shortest that keeps up with the source (`BatchingController`); longer than
    that where more frames wait, as far as they have arrived and no frame gets late by it.

    Parameters
    ----------
    settings : IntakeSettings

    Attributes
    ----------
    controller : BatchingController
        Learns what a round costs by the rows in it, and chooses lengths.
    length : int
        Of the chunk that enters, in multiples of the shortest.
    interval : float
        Seconds from frame to frame, averaged; 0 before the second one.
    """

    def __init__(self, settings: IntakeSettings) -> None:
        self.settings = settings
        self.controller = BatchingController(
            BatchingSettings(lengths=settings.lengths, max_batch=1, passes=settings.passes)
        )
        self.length = settings.lengths[0]
        self._last_arrival: int | None = None
        self.interval = 0.0

    def arrived(self, now: int) -> None:
        """Take note of the arrival of a frame, at `now` nanoseconds."""
        if self._last_arrival is not None:
            interval = (now - self._last_arrival) / SECOND
            self.interval = 0.9 * self.interval + 0.1 * interval if self.interval else interval
        self._last_arrival = now

    def observe(self, rows: int, seconds: float) -> None:
        """Take note of a round, encoding and decoding included.

        `rows` counts noise levels, each as often as its chunk is longer than the shortest.
        """
        if rows and seconds > 0:
            self.controller.cost.observe(rows, seconds)

    def decide(
        self,
        now: int,
        inbox: Inbox[Any],
        needed: int,
        in_flight: int,
        over: bool,
        lengths: tuple[int, ...] = (1,),
    ) -> Step:
        """Choose what to do now; thins the inbox when a chunk enters that it has fallen behind.

        Parameters
        ----------
        now : int
            Nanoseconds.
        inbox : Inbox
        needed : int
            Frames of the shortest chunk that may be next.
        in_flight : int
            Chunks at work.
        over : bool
            Whether the source has ended.
        lengths : tuple of int
            That the next chunk may have, in multiples of the shortest.
        """
        if self.waits(now, inbox, needed, in_flight, over):
            return "wait"
        if over or len(inbox) >= needed:
            self.length = self._choose_length(now, inbox, needed, lengths)
            if self.settings.realtime and self._behind(now, inbox, needed * self.length):
                inbox.thin(needed * self.length)
            return "enter"
        return "advance"

    def waits(self, now: int, inbox: Inbox[Any], needed: int, in_flight: int, over: bool) -> bool:
        """Whether `decide` would say "wait"; parameters as there."""
        if over or len(inbox) >= needed:
            return False
        return not (in_flight and (self._stalled(now) or self.one_by_one(needed)))

    def one_by_one(self, needed: int) -> bool:
        """Whether every chunk of `needed` frames can go through all levels before the next one is there."""
        cost = self.controller.cost
        if not cost.observations or not self.interval:
            return True
        return self.settings.passes * cost.predict(1) <= _BUSY * needed * self.interval

    def _choose_length(self, now: int, inbox: Inbox[Any], needed: int, lengths: tuple[int, ...]) -> int:
        fitting = [length for length in lengths if length * needed <= len(inbox)]
        if len(fitting) < 2 or not self.interval or not self.controller.cost.observations:
            return lengths[0]
        slo = round(self.settings.slo * SECOND)
        deadlines = [arrival + slo for arrival in inbox.times[::needed]][: len(inbox) // needed]
        decision = self.controller.decide(now, [deadlines], 1 / (self.interval * needed))
        least = 1 if decision is None else decision.length
        return max(
            (length for length in fitting if self.controller.in_time(now, length, deadlines)), default=least
        )

    def _behind(self, now: int, inbox: Inbox[Any], needed: int) -> bool:
        """Whether a further chunk waits already, or what waits will be late."""
        if len(inbox) <= needed:
            return False
        cost = self.controller.cost
        if len(inbox) >= 2 * needed or not cost.observations:
            return len(inbox) >= 2 * needed
        oldest = inbox.oldest
        assert oldest is not None
        rows = self.settings.passes * self.length
        done = now + round(self.settings.passes * cost.predict(rows) * SECOND)
        return done - oldest > self.settings.slo * SECOND

    def _stalled(self, now: int) -> bool:
        latest = self._last_arrival
        return latest is not None and now - latest > self.settings.stall_seconds * SECOND
