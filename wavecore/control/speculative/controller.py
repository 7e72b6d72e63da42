"""The speculative sampling controller: events in, actions out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from wavecore.control.clock import in_milliseconds
from wavecore.control.speculative.accounting import Totals, UpdateRecord
from wavecore.control.speculative.dispatch import NOTHING, Dispatcher
from wavecore.control.speculative.estimators import Estimator
from wavecore.control.speculative.events import (
    COMPLETE,
    PIXELS,
    Accepted,
    Cancel,
    Cancelled,
    Close,
    Ended,
    Event,
    Failed,
    Finish,
    Ignored,
    JobEnd,
    Output,
    Publish,
    Ready,
    Restore,
    Settled,
    Tick,
    Update,
    Wake,
)
from wavecore.control.speculative.guards import Guards
from wavecore.control.speculative.ledger import Ledger
from wavecore.control.speculative.playback import Playback
from wavecore.control.speculative.settings import Settings
from wavecore.control.speculative.state import Horizon, Job, State


class Controller:
    """Decides which call starts when, where in the stream and under which condition.

    A pure, synchronous state machine: it holds no tensor, starts no thread and reads no clock. Whoever
    drives it passes events in order, performs the outputs in order, and sends a `Tick` at `next_tick` and a
    `Wake` at `next_wake`, which may change with every event. A tick or a wake that comes too early or twice
    changes nothing, so timers need not be taken back.

    The first `Update` starts the stream: a bootstrap call at position 0, then playback, as soon as every
    further group of that call is expected to meet its deadline.

    Parameters
    ----------
    settings : Settings
    estimator : Estimator
    """

    def __init__(self, settings: Settings, estimator: Estimator) -> None:
        adapter = settings.adapter
        self.settings = settings
        self.state = State(settings.plan(), adapter.needs, adapter.carries_decoder)
        self.guards = Guards(settings, self.state, estimator)
        self.closed = False
        self._estimator = estimator
        self._ledger = Ledger()
        self.playback = Playback(settings, self.state, self.guards, estimator, self._ledger)
        self.dispatcher = Dispatcher(settings, self.state, self.guards, self.playback, self._ledger)
        self._out: list[Output] = []
        self._time = 0
        self._asked = 0  # when the first condition was
        self._failures = 0  # in a row
        self._waves = settings.cut_every is not None
        self._handlers: dict[type, Callable[[Any, int], None]] = {
            Update: self._update,
            Ready: self._ready,
            Finish: self._finish,
            Failed: self._failed,
            Cancelled: self._cancelled,
            Tick: self._tick,
            Wake: self._wake,
            Close: self._close,
        }

    # -- for the driver ------------------------------------------------------------------

    def handle(self, event: Event) -> list[Output]:
        """Apply one event, then evaluate the dispatch rule once.

        An event whose time lies before the latest one happens at the latest one.
        """
        out = self._out = self._ledger.out = []
        if self.closed:
            self._ignore(event, self._time, "the stream is closed")
            return out
        state = self.state
        state.seq += 1
        time = event.time
        if time < self._time:
            self._ignore(
                event, self._time, f"its clock is {in_milliseconds(self._time - time)} behind; it happens now"
            )
            time = self._time
        self._time = time
        self._handlers[type(event)](event, time)
        if not self.closed:
            if self.playback.frozen:
                self.playback.resume(time)
            if state.job is None:
                if state.version >= 0:
                    self.dispatcher.dispatch(time)
            elif state.pending and self._waves:
                self.dispatcher.cut(state.job, time)
        return out

    @property
    def next_tick(self) -> int | None:
        """When the next `Tick` is due; None while there is nothing to show and nothing to wait for."""
        return None if self.closed else self.playback.next_tick()

    @property
    def next_wake(self) -> int | None:
        """When the next `Wake` is due; None while only other events can change anything."""
        job = self.state.job
        if self.closed:
            return None
        if job is not None:
            return None if job.told_to_end else job.timeout
        refill_time = self.dispatcher.refill_time
        return refill_time if refill_time > self._time else None

    @property
    def state_name(self) -> str:
        """`Produce` while a job is active, otherwise `Consume`."""
        return "Consume" if self.state.job is None else "Produce"

    @property
    def horizon(self) -> Horizon:
        """What can still change."""
        return self.state.horizon

    @property
    def version(self) -> int:
        """Latest accepted condition; -1 before the first."""
        return self.state.version

    @property
    def totals(self) -> Totals:
        """Counts so far."""
        self._ledger.totals.latest = self._time
        return self._ledger.totals

    @property
    def open_records(self) -> list[UpdateRecord]:
        """Records of updates that are not settled."""
        return list(self._ledger.open.values())

    # -- events --------------------------------------------------------------------------

    def _update(self, event: Update, time: int) -> None:
        state, condition = self.state, event.condition
        if state.version < 0:
            state.version, state.condition, self._asked = 0, condition, time
            self._out.append(Accepted(time, 0, condition))
            self._refresh(time)
            return
        if _same(condition, state.condition):
            record = UpdateRecord(state.version, time, outcome="identical", by=state.version)
            self._ledger.totals.identical += 1
            self._out.append(Settled(time, record))
            return
        replaced, state.version, state.condition = state.version, state.version + 1, condition
        self._out.append(Accepted(time, state.version, condition))
        if state.pending:
            self._ledger.settle(replaced, "superseded", time, state.version)
        self._ledger.arrive(state.version, time)
        # What comes last in B, or is being made, may follow this condition already.
        state.pending = not _same(condition, self.dispatcher.made)
        if not state.pending:
            self._ledger.settle(state.version, "identical", time, replaced)
        elif self._waves and state.job is not None:
            self._refresh(time)  # the end of the job may be far

    def _ready(self, event: Ready, time: int) -> None:
        state, job, group = self.state, self.state.job, event.group
        if job is None or event.job != job.number:
            self._ignore(event, time, "not the active job")
            return
        position = job.position + group
        prediction = state.predictions.get(position) if -job.kept <= group < job.groups else None
        added = 0 if prediction is None else event.parts & COMPLETE & ~prediction.parts
        if prediction is None or not added:
            self._ignore(event, time, "nothing new of that group is of use")
            return
        self._out.append(Publish(time, job.number, position, added))
        state.publish(position, prediction, added)
        if added & PIXELS:
            if not job.cut and group >= 0:
                self._estimator.observe(job.latent + group, time - job.start, job.reason == "bootstrap")
            elif job.cut and not group:
                self._estimator.observe_cut(time - job.start)
            prediction.ready = time
            if self.playback.begun:
                self.playback.missed(position, time)
            else:
                self.playback.begin(self._asked, time)

    def _finish(self, event: Finish, time: int) -> None:
        job = self._ending(event, time)
        if job is None:
            return
        if self.state.end < job.position + job.groups:
            self._lost(job, time, "it ended before all groups were ready")
            return
        self._failures = 0
        self.dispatcher.give_up_shelf(job.version, time)
        if not self.playback.begun:
            self.playback.begin(self._asked, time)

    def _failed(self, event: Failed, time: int) -> None:
        job = self._ending(event, time)
        if job is not None:
            self._ledger.totals.failed += 1
            self._lost(job, time, event.reason or "it failed")

    def _cancelled(self, event: Cancelled, time: int) -> None:
        job = self._ending(event, time)
        if job is not None:
            self._ledger.totals.cancelled += 1
            self._lost(job, time, "it was cancelled")

    def _tick(self, event: Tick, time: int) -> None:
        nothing = self.playback.tick(time)
        if nothing is not None:
            self._ignore(event, time, nothing)
        state = self.state
        if state.shelf and state.job is not None and state.irrevocable > state.job.position:
            self.dispatcher.give_up_shelf(state.job.version, time)  # it can no longer be restored as a whole

    def _wake(self, event: Wake, time: int) -> None:
        job = self.state.job
        if job is not None and time >= job.timeout and not job.told_to_end:
            job.told_to_end = True
            self._out.append(Cancel(time, job.number, f"no end after {in_milliseconds(time - job.start)}"))

    def _close(self, event: Close, time: int) -> None:
        self._end(time, "closed")

    # -- the end of a job ----------------------------------------------------------------

    def _ending(self, event: Finish | Failed | Cancelled, time: int) -> Job | None:
        """Free the slot, if the event is about the active job."""
        state, job = self.state, self.state.job
        if job is None or event.job != job.number:
            self._ignore(event, time, "not the active job")
            return None
        state.job, state.locked = None, 0
        self._ledger.end(job, time)
        self._out.append(JobEnd(time, job.number, job.start, type(event).__name__.lower()))
        self._refresh(time)
        return job

    def _lost(self, job: Job, time: int, why: str) -> None:
        """Keep what the job published, or restore what it replaced; see to its condition."""
        state, ledger = self.state, self._ledger
        self._failures += 1
        self.dispatcher.made = NOTHING
        begun = self.playback.begun
        restored = bool(state.shelf) and state.irrevocable <= job.position
        state.seal()
        first = 0 if not begun else job.position if restored else state.end
        gone = state.cut(first)
        ledger.discard(gone, why, time)
        if job.kept:
            ledger.supersede(first, job.version, time)  # what it completed for versions before it
        if restored:
            self._out.append(Restore(time, first, first + len(state.shelf)))
            state.add(state.shelf)
            state.shelf = {}
        else:
            self.dispatcher.give_up_shelf(job.version, time)
        if begun:
            record = ledger.open.get(job.version)
            if record is not None and record.first is not None and record.first >= first:
                if job.version == state.version:
                    ledger.relaunch(job.version)
                    state.pending = not (restored and self.settings.fallback == "stale")
                else:
                    ledger.settle(job.version, "superseded", time, state.version)
            kind = self.settings.fallback if restored or self.settings.fallback == "drop" else "freeze"
            ledger.fall_back(kind, first, f"job {job.number}: {why}", time)
        if self._failures >= self.settings.failure_limit:
            self._end(time, f"{self._failures} jobs in a row failed, the last one because {why}")

    # -- helpers -------------------------------------------------------------------------

    def _refresh(self, time: int) -> None:
        fault = self.guards.refresh()
        if fault is not None:
            self._out.append(Ignored(time, "estimate", fault))
            self._ledger.totals.ignored += 1

    def _ignore(self, event: Event, time: int, reason: str) -> None:
        self._ledger.totals.ignored += 1
        self._out.append(Ignored(time, type(event).__name__.lower(), reason))

    def _end(self, time: int, reason: str) -> None:
        state = self.state
        self.closed = True
        if state.job is not None:
            self._out.append(Cancel(time, state.job.number, reason))
            self._ledger.end(state.job, time)
        self._ledger.close((state.predictions, state.shelf), state.cursor, time)
        self._out.append(Ended(time, reason))


def _same(condition: Any, other: Any) -> bool:
    """Whether two conditions are equal; those that do not compare to a plain truth value are not."""
    return condition is other or (condition == other) is True
