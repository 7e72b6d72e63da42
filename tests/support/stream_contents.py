"""What the positions of a stream hold and what follows from that, worked out apart from the controller.

Deadlines, feasibility and coverage come from the settings and from what was published alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction

from wavecore.control.clock import SECOND, nanoseconds
from wavecore.control.speculative import Controller
from wavecore.control.speculative import events as ev


@dataclass
class Content:
    """What a position holds; (job, group) stands for the data itself."""

    job: int
    group: int
    version: int
    parts: int = 0
    late: bool = False

    @property
    def token(self):
        return self.job, self.group


@dataclass
class Call:
    """A launched job."""

    launch: ev.Launch
    prefix: dict  # token of every position it attends to
    in_flight: dict  # token of every position that it completes for the job it has cut


@dataclass
class Contents:
    """Valid predictions by position, and the guards over them."""

    controller: Controller
    contents: dict = field(default_factory=dict)  # valid, by position; shown ones stay
    shelf: dict = field(default_factory=dict)
    calls: dict = field(default_factory=dict)
    active: int | None = None
    cursor: int = 0
    irrevocable: int = 0
    empty: list = field(default_factory=list)  # ranges announced to stay empty
    start: int | None = None
    floor: int = 0  # everything before it is shown or left empty, and complete

    def __post_init__(self):
        self.settings = self.controller.settings
        self.adapter = self.settings.adapter
        self.commit_lead = nanoseconds(self.settings.commit_lead)
        self.firsts = [nanoseconds(s) for s in self.settings.first_group_seconds]

    # -- the plan -------------------------------------------------------------------------

    def offset(self, position):
        firsts = self.firsts[:position]
        rest = Fraction(self.settings.group_seconds).limit_denominator(10**6) * (position - len(firsts))
        return sum(firsts) + int(rest * SECOND)

    def due(self, position):
        return self.start + self.offset(position)

    # -- what is there --------------------------------------------------------------------

    def is_empty(self, position):
        return any(first <= position < end for first, end in self.empty)

    def has(self, position, parts):
        content = self.contents.get(position)
        return content is not None and content.parts & parts == parts

    def filled(self, first, end):
        """Positions in [first, end) that were not announced to stay empty."""
        while first < end:
            gap = max((e for f, e in self.empty if f <= first < e), default=None)
            if gap is None:
                yield first
            first = gap or first + 1

    def being_made(self, position):
        """Whether the active job may still add to a position."""
        if self.active is None or position not in self.contents:
            return False
        in_flight = self.calls[self.active].in_flight
        return self.contents[position].job == self.active or position in in_flight

    def is_complete(self, position):
        content = self.contents.get(position)
        return content is not None and content.parts & self.adapter.parts == self.adapter.parts & ~(
            ev.PIXELS * content.late
        )

    def without_contents(self, first, end):
        """The parts of [first, end) in which nothing lies that may still become complete."""
        held = sorted(
            p for p in self.contents if first <= p < end and (self.being_made(p) or self.is_complete(p))
        )
        pieces = []
        for p in held:
            if first < p:
                pieces.append((first, p))
            first = p + 1
        return [*pieces, (first, end)] if first < end else pieces

    def raise_floor(self):
        while self.floor < self.cursor:
            gap = next((end for first, end in self.empty if first <= self.floor < end), None)
            if gap is None and not self.is_complete(self.floor):
                return
            self.floor = min(gap or self.floor + 1, self.cursor)

    # -- the guards -----------------------------------------------------------------------

    def feasible(self, position, time):
        """F_j; not if only the rounding of deadlines makes it so."""
        adapter = self.adapter
        if not all(self.has(before, adapter.needs) for before in self.filled(self.floor, position)):
            return False
        if not all(self.has(before, ev.PIXELS) for before in self.filled(self.cursor, position)):
            return False
        locked = max(self.irrevocable, 0 if self.active is None else self.calls[self.active].launch.position)
        if not self.decodable(position) or position % adapter.phase or position < locked:
            return False
        delay = 0 if self.active is None else self.controller.guards.cut_delay
        return self.in_time(position, time + delay, 2 * self.controller.state.plan.rounding)

    def decodable(self, position):
        if not self.adapter.carries_decoder or position == 0 or self.is_empty(position - 1):
            return True
        return self.has(position - 1, ev.SNAPSHOT)

    def in_time(self, position, time, tolerance=0):
        guards = self.controller.guards
        if guards.latencies is None:
            return False
        trimmed = self.adapter.trimmed(position)
        return all(
            time + latency + guards.margin + self.commit_lead + tolerance <= self.due(position + m)
            for m, latency in enumerate(guards.latencies[trimmed:])
        )

    def flight_in_time(self, launch, position, tolerance=0):
        """Whether what a job still makes before `position` is expected in time."""
        guards = self.controller.guards
        return all(
            launch.time + guards.latencies[p - launch.position] + guards.margin + self.commit_lead + tolerance
            <= self.due(p)
            for p in range(launch.position, position)
            if not self.has(p, ev.PIXELS)
        )
