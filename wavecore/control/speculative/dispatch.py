"""When a call starts, where, and what it replaces."""

from __future__ import annotations

from typing import Any

from wavecore.control.clock import in_milliseconds, nanoseconds
from wavecore.control.speculative.events import Decision, JobEnd, Launch, Rejection, Shelve
from wavecore.control.speculative.guards import Guards
from wavecore.control.speculative.ledger import Ledger
from wavecore.control.speculative.playback import Playback
from wavecore.control.speculative.settings import Settings
from wavecore.control.speculative.state import Job, Prediction, State

NOTHING: Any = object()  # a condition that is no condition


class Dispatcher:
    """The dispatch rule g, the choice of a position, and Launch(j).

    Parameters
    ----------
    settings : Settings
    state : State
    guards : Guards
    playback : Playback
    ledger : Ledger

    Attributes
    ----------
    made : object
        Condition of the latest launch; `NOTHING` before any and after a loss.
    refill_time : int
        From when on Refill holds, as of the latest `dispatch`.
    """

    def __init__(
        self, settings: Settings, state: State, guards: Guards, playback: Playback, ledger: Ledger
    ) -> None:
        self.made: Any = NOTHING
        self.refill_time = 0
        self._settings, self._state, self._guards = settings, state, guards
        self._playback, self._ledger = playback, ledger
        self._timeout = nanoseconds(settings.job_timeout)
        self._jobs = 0
        self._explained = -1

    def dispatch(self, time: int) -> None:
        """Without a job: launch a call, if there is a reason to and a feasible position."""
        if not self._playback.begun:
            self._decide("bootstrap", 0, [], time)
            self._launch(0, "bootstrap", 0, time)
            return
        self.refill_time = self._guards.refill_time()
        refill = time >= self.refill_time
        if self._state.pending:
            position, rejected = self._guards.earliest(time)
            if position is not None or not refill:
                self._decide("pending", position, rejected, time)
            if position is not None:
                self._launch(position, "pending", len(rejected), time)
            elif refill:
                self._launch_late(rejected, time)
        elif refill:
            position = self._guards.append()
            rejection = self._guards.check(position, time)
            if rejection is None:
                self._decide("refill", position, [], time)
                self._launch(position, "refill", 0, time)
            else:
                self._launch_late([rejection], time)

    def cut(self, job: Job, time: int) -> None:
        """Let a pending version take the place of what the active job has not made, if that is feasible."""
        if not self.may_cut(job):
            return
        position, rejected = self._guards.cut(job, time)
        state = self._state
        if position is not None or state.version != self._explained:
            self._explained = state.version  # why it has to wait is said once
            self._decide("pending", position, rejected, time)
        if position is None:
            return
        state.job, state.locked = None, 0
        self._ledger.end(job, time)
        self._ledger.out.append(JobEnd(time, job.number, job.start, "cut"))
        self.give_up_shelf(job.version, time)
        self._launch(position, "pending", len(rejected), time, kept=max(position - state.end, 0), cut=True)

    def may_cut(self, job: Job) -> bool:
        """Whether a job has gone on for long enough to be cut.

        A launched condition is not cut before something of it is there, or updates that come faster than
        calls would never show anything.
        """
        waits = job.reason == "pending" and self._state.pixels_end <= job.position
        return self._playback.begun and not job.told_to_end and not waits

    def give_up_shelf(self, version: int, time: int) -> None:
        """Discard what `version` has replaced for good."""
        shelf, self._state.shelf = self._state.shelf, {}
        if shelf:
            self._ledger.discard(shelf, "replaced", time)
            self._ledger.supersede(min(shelf), version, time)

    def _launch_late(self, rejected: list[Rejection], time: int) -> None:
        """Refill where no deadline can be met any more: waiting would only make it later."""
        state, guards, drop = self._state, self._guards, self._settings.fallback == "drop"
        position = guards.append()
        kind = "drop" if drop or position > state.end else "freeze"
        if drop and guards.latencies is not None:
            position = max(position, state.plan.position_from(time + guards.need(position)))
            position += -position % self._settings.adapter.phase
        self._decide("late", position, rejected, time)
        state.leave_empty(position)
        late = max(guards.in_time(position, time), 0)
        self._ledger.fall_back(kind, position, f"late by {in_milliseconds(late)}", time)
        self._launch(position, "late", len(rejected), time)

    def _launch(
        self, position: int, reason: str, passed: int, time: int, kept: int = 0, cut: bool = False
    ) -> None:
        """Lock what is before `position`, invalidate what is behind it, start one call there.

        What a call in progress (`cut`) had not made cannot be restored.
        """
        state, adapter, out = self._state, self._settings.adapter, self._ledger.out
        replaced = state.cut(position)
        if replaced and not cut and self._settings.fallback in ("stale", "retarget"):
            state.shelf = replaced
            out.append(Shelve(time, position, position + len(replaced)))
        elif replaced:
            self._ledger.discard(replaced, "replaced", time)
            self._ledger.supersede(position, state.version, time)
        trimmed, groups = adapter.trimmed(position), adapter.playable(position)
        number, version = self._jobs, state.version
        self._jobs += 1
        timeout = time + self._timeout
        state.job = Job(number, version, position, groups, trimmed, time, timeout, reason, False, kept, cut)
        state.locked = position
        state.pending = False
        state.add({position + group: Prediction(version, number, time) for group in range(groups)})
        self.made = state.condition
        out.append(Launch(time, number, version, state.condition, position, groups, trimmed, reason, kept))
        self._ledger.launch(state.job, adapter.latents, passed)

    def _decide(self, reason: str, position: int | None, rejected: list[Rejection], time: int) -> None:
        coverage, lead = (self._guards.coverage(time), self._guards.lead) if self._playback.begun else (0, 0)
        decision = Decision(time, self._state.seq, reason, position, tuple(rejected), coverage, lead)
        self._ledger.out.append(decision)
