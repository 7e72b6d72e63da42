"""Playback: what is handed over and shown when, and what happens when there is nothing to show."""

from __future__ import annotations

from wavecore.control.clock import nanoseconds
from wavecore.control.speculative.estimators import Estimator
from wavecore.control.speculative.events import Begin, Commit, Display, Missed, Resume, Underrun
from wavecore.control.speculative.guards import Guards
from wavecore.control.speculative.ledger import Ledger
from wavecore.control.speculative.settings import Settings
from wavecore.control.speculative.state import State


class Playback:
    """Moves the cursor and the irrevocable end along the plan.

    Parameters
    ----------
    settings : Settings
    state : State
    guards : Guards
    estimator : Estimator
        Learns how many of the groups that were due were missing.
    ledger : Ledger

    Attributes
    ----------
    begun : bool
        Whether the plan has a start.
    frozen : bool
        The last frame is held because the next group is not ready.
    """

    def __init__(
        self, settings: Settings, state: State, guards: Guards, estimator: Estimator, ledger: Ledger
    ) -> None:
        self.begun = self.frozen = False
        self._state, self._guards, self._estimator, self._ledger = state, guards, estimator, ledger
        self._drop = settings.fallback == "drop"
        self._commit_lead = nanoseconds(settings.commit_lead)
        self._due = self._over = 0  # when the position at the cursor is due, and when its time is over

    def begin(self, asked: int, time: int) -> None:
        """Give the plan its start, if every group of the bootstrap call is expected in time.

        Parameters
        ----------
        asked : int
            When the first condition arrived.
        time : int
        """
        state, latencies, job = self._state, self._guards.latencies, self._state.job
        start = time
        if job is not None and state.pixels_end < job.groups:
            if latencies is None or not state.pixels_end:
                return
            offset = state.plan.offset
            waits = (latencies[m] - offset(m) for m in range(state.pixels_end, job.groups))
            start = max(time, job.start + self._guards.margin + int(max(waits)))
        state.plan.start = start = start + self._commit_lead
        totals = self._ledger.totals
        totals.startup, totals.began = start - asked, start
        self.begun = True
        self._look_ahead()
        self._ledger.out.append(Begin(time, start, start - asked))

    def tick(self, time: int) -> str | None:
        """Hand over what is due and show at most one position.

        Returns
        -------
        str or None
            Why nothing happened.
        """
        if not self.begun or self.frozen:
            return "playback stands still"
        if time >= self._over:
            self._catch_up(time)
        committed = self._commit(time)
        if time < self._due:
            return None if committed else "nothing is due yet"
        state = self._state
        position = state.cursor
        prediction = state.predictions.get(position)
        if position >= state.pixels_end:
            if self._drop:
                self._skip(position + 1, time)
            else:
                self.frozen = True
                self._underrun(position, 1, "freeze", time)
        elif prediction is None:  # left empty by a fallback
            self._skip(position + 1, time)
        else:
            self._ledger.out.append(Display(time, position, prediction.version))
            state.display()
            self._due, self._over = self._over, state.plan.deadline(position + 2)
            self._ledger.display(prediction, time)
            self._estimator.due(1, 0)
        return None

    def resume(self, time: int) -> None:
        """Go on with a frozen stream, if the group it waits for is there."""
        if self.frozen and self._state.pixels_end > self._state.cursor:
            self.frozen = False
            self._move_plan(max(time + self._commit_lead - self._due, 0), time)

    def next_tick(self) -> int | None:
        """When a tick will have something to do."""
        if not self.begun or self.frozen:
            return None
        if self._commit_lead:
            state, position = self._state, self._state.irrevocable
            if position < state.pixels_end and position in state.predictions:
                return min(self._due, state.plan.deadline(position) - self._commit_lead)
        return self._due

    def missed(self, position: int, time: int) -> None:
        """Note it if the frames of `position`, ready now, come after their deadline."""
        if time + self._commit_lead <= self._due:
            return
        late = time - self._state.plan.deadline(position) + self._commit_lead
        if late > 0:
            self._ledger.totals.missed_deadlines += 1
            self._ledger.out.append(Missed(time, position, late))

    def _commit(self, time: int) -> bool:
        """Make irrevocable what is to be handed over by now."""
        state, before = self._state, self._state.irrevocable
        if before == state.cursor and time < self._due - self._commit_lead:
            return False
        while state.irrevocable < state.pixels_end:
            position = state.irrevocable
            prediction = state.predictions.get(position)
            if prediction is None or state.plan.deadline(position) - self._commit_lead > time:
                break
            self._ledger.out.append(Commit(time, position, prediction.version))
            state.irrevocable += 1
        return state.irrevocable > before

    def _catch_up(self, time: int) -> None:
        """A tick came after the whole time of its position: drop what is past, or move the plan."""
        state, plan = self._state, self._state.plan
        if self._drop:
            self._skip(plan.position_from(time + 1) - 1, time)
        elif state.cursor < state.pixels_end:
            late = time - self._due
            self._ledger.totals.missed_deadlines += 1
            self._ledger.out.append(Missed(time, state.cursor, late))
            self._move_plan(late, time)

    def _skip(self, end: int, time: int) -> None:
        """Pass the positions from the cursor to `end` without showing anything."""
        first = self._state.cursor
        self._underrun(first, end - first, "drop", time)
        self._ledger.late(self._state.skip(end), time)
        self._look_ahead()

    def _underrun(self, position: int, groups: int, fallback: str, time: int) -> None:
        totals = self._ledger.totals
        totals.underruns += 1
        totals.missed_groups += groups
        totals.count(totals.fallbacks, fallback)
        self._estimator.due(groups, groups)
        self._ledger.out.append(Underrun(time, position, groups, fallback))

    def _move_plan(self, by: int, time: int) -> None:
        self._state.plan.delay(by)
        self._look_ahead()
        self._ledger.totals.frozen += by
        self._ledger.out.append(Resume(time, self._state.cursor, by))

    def _look_ahead(self) -> None:
        plan, cursor = self._state.plan, self._state.cursor
        self._due, self._over = plan.deadline(cursor), plan.deadline(cursor + 1)
