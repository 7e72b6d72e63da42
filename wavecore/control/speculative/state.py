"""The registers of the controller and what keeps them consistent."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from wavecore.control.speculative.events import PIXELS, SNAPSHOT
from wavecore.control.speculative.plan import PlaybackPlan

LATE = 16  # joins the parts of a prediction that was due before its pixels were there: never shown


class Prediction(msgspec.Struct, gc=False):
    """One position of B.

    Attributes
    ----------
    version, job : int
        Which condition it follows, which job makes it.
    start, ready : int
        When that job was launched, and when the pixels were there.
    parts : int
        Mask of what is there.
    """

    version: int
    job: int
    start: int
    ready: int = 0
    parts: int = 0


class Job(msgspec.Struct, gc=False):
    """The active job J.

    Attributes
    ----------
    position, groups : int
        It makes positions [position, position + groups).
    latent : int
        Index within the call of its first playable latent; what comes before is trimmed.
    timeout : int
        Time at which it is told to end.
    kept : int
        Positions before `position` that it completes for the job it has cut.
    cut : bool
        Whether it took the place of one that was cut.
    """

    number: int
    version: int
    position: int
    groups: int
    latent: int
    start: int
    timeout: int
    reason: str
    told_to_end: bool = False
    kept: int = 0
    cut: bool = False


class Horizon(NamedTuple):
    """What can still change, as exclusive ends.

    [0, irrevocable) is with the viewer or on its way, [irrevocable, locked) is being built upon,
    [locked, replaceable) waits to be played or replaced.
    """

    irrevocable: int
    locked: int
    replaceable: int


class State:
    """Registers B, v, u, J, p, l_i, l_l, n, β and seq; H and V are the context and snapshot parts of B.

    Parameters
    ----------
    plan : PlaybackPlan
        β.
    needs : int
        Parts that the adapter continues from.
    snapshots : bool
        Whether decoding goes on from snapshots.

    Attributes
    ----------
    predictions : dict of Prediction by position
        B: all that was launched, valid, and not yet both displayed and complete.
    shelf : dict of Prediction by position
        The suffix that the active job replaces, where the fallback may restore it.
    version, condition : int, object
        v; -1 before the first condition.
    pending : bool
        Whether v waits for a launch (u).
    job : Job or None
        J.
    cursor : int
        p, the next position to display.
    irrevocable, locked : int
        l_i, and the prefix that the active job builds on, l_l (0 without a job).
    pixels_end, context_end, snapshots_end : int
        Every position before has its frames, what the adapter continues from, its decoder snapshot.
    """

    def __init__(self, plan: PlaybackPlan, needs: int, snapshots: bool) -> None:
        self.plan = plan
        self.predictions: dict[int, Prediction] = {}
        self.shelf: dict[int, Prediction] = {}
        self.version = -1
        self.condition: Any = None
        self.pending = False
        self.job: Job | None = None
        self.cursor = self.irrevocable = self.locked = 0
        self.pixels_end = self.context_end = self.snapshots_end = 0
        self.seq = 0
        self._needs, self._snapshots = needs, snapshots
        self._used = PIXELS | needs | (SNAPSHOT if snapshots else 0)
        self._floor = 0  # B holds no position before it
        self._hole_end = 0  # positions before it without a prediction stay empty

    @property
    def fixed(self) -> int:
        """l = max(l_i, l_l)."""
        return max(self.irrevocable, self.locked)

    @property
    def end(self) -> int:
        """n, the end of valid predictions."""
        end = min(self.pixels_end, self.context_end)
        return min(end, self.snapshots_end) if self._snapshots else end

    @property
    def horizon(self) -> Horizon:
        """Exclusive ends of the irrevocable, the locked and the replaceable positions."""
        fixed = self.fixed
        return Horizon(self.irrevocable, fixed, max(fixed, self.pixels_end, self.end))

    def publish(self, position: int, prediction: Prediction, parts: int) -> None:
        """Add parts to a prediction and move the ends."""
        prediction.parts |= parts
        following = self.predictions.get(position + 1)
        if (
            parts & self._used == self._used
            and position == self.pixels_end == self.context_end
            and (position == self.snapshots_end or not self._snapshots)
            and following is not None
            and not following.parts
        ):  # the common case: whole groups in order
            self.pixels_end = self.context_end = self.snapshots_end = position + 1
            return
        if parts & PIXELS and position == self.pixels_end:
            self.pixels_end = self._advance(position, PIXELS)
        if parts & self._needs and position == self.context_end:
            self.context_end = self._advance(position - 1, self._needs)
        if self._snapshots and parts & SNAPSHOT and position == self.snapshots_end:
            self.snapshots_end = self._advance(position, SNAPSHOT)
        if position < self.cursor:
            self._prune()

    def cut(self, first: int) -> dict[int, Prediction]:
        """Take the predictions from `first` on out of B."""
        taken = {p: self.predictions.pop(p) for p in list(self.predictions) if p >= first}
        self._hole_end = max(min(self._hole_end, first), self.cursor)
        self.pixels_end = min(self.pixels_end, first)
        self.context_end = min(self.context_end, first)
        self.snapshots_end = min(self.snapshots_end, first)
        self._find_ends()
        return taken

    def add(self, predictions: dict[int, Prediction]) -> None:
        """Put predictions into B behind those that are there."""
        self.predictions |= predictions
        self._find_ends()

    def seal(self) -> None:
        """Expect nothing more of irrevocable positions: what is missing there stays a gap in the context."""
        for position, prediction in self.predictions.items():
            if position < self.irrevocable:
                prediction.parts |= self._used
        self._find_ends()
        self._prune()

    def leave_empty(self, end: int) -> None:
        """Give up every position before `end` that has no prediction."""
        self._hole_end = max(self._hole_end, end)
        self._find_ends()

    def display(self) -> None:
        """Advance p past a displayed position."""
        position = self.cursor
        self.cursor = end = position + 1
        if self.irrevocable < end:
            self.irrevocable = end
        complete = end <= self.context_end and (end <= self.snapshots_end or not self._snapshots)
        if complete and position == self._floor:
            del self.predictions[position]
            self._floor = end
        else:
            self._prune()

    def skip(self, end: int) -> dict[int, Prediction]:
        """Advance p to `end` without displaying; returns what had been predicted on the way."""
        skipped = {p: entry for p, entry in self.predictions.items() if self.cursor <= p < end}
        for prediction in skipped.values():
            prediction.parts |= LATE | PIXELS
        self.cursor = end
        self.irrevocable = max(self.irrevocable, end)
        self.leave_empty(end)
        self._prune()
        return skipped

    def _find_ends(self) -> None:
        self.pixels_end = self._advance(self.pixels_end - 1, PIXELS)
        self.context_end = self._advance(self.context_end - 1, self._needs)
        self.snapshots_end = self._advance(self.snapshots_end - 1, SNAPSHOT) if self._snapshots else 0

    def _advance(self, position: int, parts: int) -> int:
        """First position behind `position` that lacks some of `parts`."""
        predictions = self.predictions
        position += 1
        while True:
            prediction = predictions.get(position)
            if prediction is None:
                if position >= self._hole_end:
                    return position
                # Cheap as long as nothing is left empty; a jump of the clock leaves arbitrarily much empty.
                later = [p for p in predictions if position < p < self._hole_end]
                position = min(later, default=self._hole_end)
            elif prediction.parts & parts != parts:
                return position
            else:
                position += 1

    def _prune(self) -> None:
        """Forget positions that were passed and of which nothing is missing."""
        stop = min(self.cursor, self.context_end)
        if self._snapshots:
            stop = min(stop, self.snapshots_end)
        if stop - self._floor > len(self.predictions):
            for position in [p for p in self.predictions if p < stop]:
                del self.predictions[position]
        else:
            for position in range(self._floor, stop):
                self.predictions.pop(position, None)
        self._floor = max(self._floor, stop)
