"""The outside of a controller, for tests: workers, cache, decoder and screen, and what must hold for them.

`World` performs the outputs of a controller on contents of its own and checks every one against the eight
invariants of the specification. It shares no logic with the controller.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from support.stream_contents import Call, Content, Contents

from wavecore.control.speculative import events as ev

JOB_EVENTS = (ev.Ready, ev.Finish, ev.Failed, ev.Cancelled)


@dataclass
class World(Contents):
    """Drive with `send`; read `contents`, `committed` and `shown`."""

    committed: dict = field(default_factory=dict)
    shown: list = field(default_factory=list)
    time: int = 0
    frozen: bool = False
    closed: bool = False
    events: int = 0
    sampled: int = 0
    discarded: int = 0
    kinds: Counter = field(default_factory=Counter)
    arrivals: dict = field(default_factory=dict)
    settled: dict = field(default_factory=dict)
    ready_times: dict = field(default_factory=dict)
    cut: Call | None = None  # the call that the event at hand has cut

    # -- driving --------------------------------------------------------------------------

    def send(self, event):
        """Pass an event to the controller and check what comes of it."""
        controller = self.controller
        was_closed, was_active = self.closed, self.active
        known = controller.state.version
        self.events += 1
        self.time = max(self.time, event.time) if not was_closed else self.time
        outputs = controller.handle(event)
        self.outputs, self.event, self.cut = outputs, event, None
        if was_closed:
            assert [type(o) for o in outputs] == [ev.Ignored], "after close nothing happens"
            return outputs
        if isinstance(event, ev.Update) and controller.state.version > known >= 0:
            self.arrivals[controller.state.version] = self.time
        if isinstance(event, JOB_EVENTS):
            self._job_event(event, was_active, outputs)
        if isinstance(event, ev.Tick):
            self._expected_of_a_tick(outputs)
        for output in outputs:
            assert output.time == self.time, "outputs carry the time of their event"
            self.kinds[type(output).__name__] += 1
            getattr(self, f"_on_{type(output).__name__.lower()}")(output)
        self._check(outputs)
        return outputs

    def _job_event(self, event, was_active, outputs):
        ended = [o for o in outputs if isinstance(o, ev.FellBack | ev.Restore)]
        if event.job != was_active:  # invariant 4
            assert not any(isinstance(o, ev.Publish) for o in outputs), "a stale callback published"
            assert not [o for o in ended if "job" in getattr(o, "detail", "job")], (
                "a stale callback ended a job"
            )
            assert any(isinstance(o, ev.Ignored) for o in outputs), "a stale callback is not in the log"
        elif not isinstance(event, ev.Ready):
            self._lose_incomplete(self._end_call())

    def _end_call(self):
        call = self.calls[self.active]
        for position, token in (call.prefix | call.in_flight).items():  # invariants 1 and 2, while it ran
            assert self.contents[position].token == token, f"position {position} changed under a job"
        self.active = None
        return call

    def _lose_incomplete(self, call):
        """What is irrevocable and can no longer be completed stays a gap in the context."""
        launch = call.launch
        positions = range(launch.position - launch.kept, launch.position + launch.groups)
        broken = next((p for p in positions if not self.is_complete(p)), None)
        if broken is not None and broken < self.irrevocable:
            self.empty.append((broken, self.irrevocable))

    def _expected_of_a_tick(self, outputs):
        """Invariants 6 and 8: a position that is due is shown or reported missing."""
        if self.start is None or self.frozen or self.time < self.due(self.cursor):
            assert not any(isinstance(o, ev.Display | ev.Underrun) for o in outputs), (
                "shown or missed too early"
            )
            return
        assert any(isinstance(o, ev.Display | ev.Underrun) for o in outputs), "neither shown nor reported"

    # -- outputs --------------------------------------------------------------------------

    def _on_launch(self, launch):
        position, adapter = launch.position, self.adapter
        assert self.active is None, "two jobs at once"  # 3
        assert launch.job not in self.calls
        decisions = [o for o in self.outputs if isinstance(o, ev.Decision) and o.position == position]
        assert decisions and decisions[-1].reason == launch.reason, "a launch without its decision"  # 8
        assert position >= self.irrevocable, "a committed position would be overwritten"  # 1
        assert launch.trimmed == adapter.trimmed(position)  # 5
        assert launch.groups == adapter.playable(position) > 0
        assert position % adapter.phase == 0
        self._check_reason(launch)
        in_flight = self._check_cut(launch)
        prefix = {}
        for before in self.filled(self.floor, position - launch.kept):  # 2, 5
            assert self.has(before, adapter.needs), f"position {before} is not there to continue from"
            prefix[before] = self.contents[before].token
        if not launch.kept:
            assert self.decodable(position), "decoding cannot go on here without redoing frames"  # 7
        assert not [p for p in self.contents if p >= position], "the replaceable suffix is still valid"  # 2
        self.empty = [(f, min(e, position)) for f, e in self.empty if f < position]
        self.calls[launch.job] = Call(launch, prefix, in_flight)
        self.kinds["kept"] += launch.kept > 0
        self.active = launch.job
        self.sampled += launch.groups
        for group in range(launch.groups):
            self.contents[position + group] = Content(launch.job, group, launch.version)

    def _check_cut(self, launch):
        """A call that is cut goes on between two of its chunks; returns what it still makes."""
        if self.cut is None:
            assert not launch.kept, "a call goes on that was not cut"
            return {}
        old, position, first = self.cut.launch, launch.position, launch.position - launch.kept
        assert launch.reason == "pending"
        assert position >= old.position, "what a running call builds on would be overwritten"  # 1
        if not launch.kept:
            return {}
        assert (position - old.position) % self.settings.cut_every == 0, "a cut within a chunk"
        assert self.flight_in_time(old, position), "what goes on cannot come in time"  # 3
        flight = {p: self.contents[p] for p in range(first, position)}
        assert all(c.job == old.job or p in self.cut.in_flight for p, c in flight.items()), (
            "something goes on that was not being made"
        )
        return {p: content.token for p, content in flight.items()}

    def _check_reason(self, launch):
        position, time = launch.position, launch.time
        if launch.reason == "bootstrap":
            assert self.start is None and position == 0
        elif launch.reason == "pending":
            assert launch.version in self.arrivals, "nothing was pending"
        else:
            coverage = self.due(position) - time
            decision = next(o for o in self.outputs if isinstance(o, ev.Decision) and o.position == position)
            assert coverage <= decision.lead or self.fell_back("drop"), "a refill before its time"  # 3
        if launch.reason in ("pending", "refill"):
            assert self.in_time(position, time), "a deadline cannot be met"  # 3
        if launch.reason == "late":
            assert self.fell_back("freeze") or self.fell_back("drop"), (
                "a late launch without its fallback"
            )  # 8

    def fell_back(self, kind):
        return any(isinstance(o, ev.FellBack) and o.fallback == kind for o in self.outputs)

    def _on_publish(self, publish):
        event = self.event
        assert isinstance(event, ev.Ready) and event.job == publish.job == self.active  # 4
        launch = self.calls[publish.job].launch
        assert publish.position == launch.position + event.group  # 5
        assert -launch.kept <= event.group < launch.groups
        content = self.contents[publish.position]
        in_flight = self.calls[publish.job].in_flight
        assert content.token == in_flight.get(publish.position, (publish.job, event.group))  # 1
        assert not content.parts & publish.parts, "published twice"  # 1
        assert not publish.parts & ~event.parts, "published more than was ready"
        if publish.parts & ev.PIXELS:
            assert publish.position not in self.committed, "a committed position was overwritten"  # 1
            assert not content.late
            self.ready_times[publish.position, content.job] = publish.time
            if self.start is not None and publish.time > self.due(publish.position) - self.commit_lead:
                missed = [o for o in self.outputs if isinstance(o, ev.Missed)]
                assert [m.position for m in missed] == [publish.position], "a missed deadline unlogged"  # 8
        content.parts |= publish.parts

    def _on_commit(self, commit):
        position = commit.position
        assert position == self.irrevocable
        assert self.has(position, ev.PIXELS) and not self.contents[position].late
        assert commit.version == self.contents[position].version
        assert commit.time >= self.due(position) - self.commit_lead
        self.committed[position] = self.contents[position].token
        self.irrevocable = position + 1

    def _on_display(self, display):
        position = display.position
        assert isinstance(self.event, ev.Tick)  # 6
        assert position == self.cursor, "shown out of order"  # 5
        assert display.time >= self.due(position), "shown too early"  # 6
        assert self.has(position, ev.PIXELS), "shown before it was ready"  # 6
        assert self.committed[position] == self.contents[position].token, "delivered frames changed"  # 1, 7
        assert display.version == self.contents[position].version
        self.shown.append(position)
        self.cursor += 1

    def _on_underrun(self, underrun):
        position, groups = underrun.position, underrun.groups
        assert position == self.cursor
        overdue = underrun.time >= self.due(position + 1)
        assert overdue or not self.has(position, ev.PIXELS), "reported missing but ready"
        if underrun.fallback == "freeze":
            assert groups == 1 and not self.frozen
            self.frozen = True
            return
        assert self.settings.fallback == "drop" or self.is_empty(position)
        assert underrun.time >= self.due(position + groups - 1), "skipped before it was due"
        if not all(p in self.contents for p in range(position, position + min(groups, 1000))):
            self.empty.append((position, position + groups))
        for p in [p for p in self.contents if position <= p < position + groups]:
            self.contents[p].late = True
        self.empty = [piece for first, end in self.empty for piece in self.without_contents(first, end)]
        self.cursor = position + groups
        self.irrevocable = max(self.irrevocable, self.cursor)

    def _on_discard(self, discard):
        first, end = discard.first, discard.end
        self.discarded += discard.groups
        if discard.reason == "late":
            assert end == first + 1 == first + discard.groups and self.contents[first].late
            return
        keeps = self.settings.fallback in ("stale", "retarget")
        shelved = keeps and bool(self.shelf)  # a call that is cut has what it had not made replaced at once
        source = self.shelf if discard.reason == "replaced" and shelved else self.contents
        if discard.reason == "closed":
            self.closed = True
            source = (
                self.contents
                if first in self.contents
                and self.contents[first].token not in [c.token for c in self.shelf.values()]
                else self.shelf
            )
        kept = 0 if source is self.shelf else self.cursor
        gone = {p: c for p, c in source.items() if first <= p < end and not c.late and p >= kept}
        assert len(gone) == discard.groups, "discarded predictions miscounted"  # 8
        if discard.reason != "closed" and source is self.contents:
            assert not gone.keys() & self.committed.keys(), "a committed position was discarded"  # 1
        for position in gone:
            del source[position]
        if source is self.contents:
            for position in [p for p in source if p >= first and source[p].late]:
                del source[position]

    def _on_shelve(self, shelve):
        assert shelve.first >= self.irrevocable
        assert not self.shelf
        assert self.cut is None, "what a running call has not made is to be kept"
        for position in range(shelve.first, shelve.end):
            self.shelf[position] = self.contents.pop(position)

    def _on_restore(self, restore):
        assert set(self.shelf) == set(range(restore.first, restore.end))
        assert not self.committed.keys() & self.shelf.keys()
        assert not self.contents.keys() & self.shelf.keys(), "restored over valid predictions"
        self.contents |= self.shelf
        self.shelf = {}

    def _on_cancel(self, cancel):
        assert cancel.job == self.active

    def _on_decision(self, decision):
        positions = [rejection.position for rejection in decision.rejected]
        assert positions == sorted(positions)
        assert decision.position is not None or decision.reason == "pending"
        for rejection in decision.rejected:
            if rejection.guard == "sooner after the job":  # feasible, but it waits
                assert self.active is not None and decision.position is None and rejection.short > 0
                continue
            assert not self.feasible(rejection.position, decision.time), "rejected although feasible"
            in_flight = rejection.guard == "cover" and rejection.position > self.controller.state.end
            assert (rejection.short > 0) == (rejection.guard == "deadline" or in_flight)
        if decision.reason == "pending" and decision.position is not None:
            for position in range(max(self.cursor, decision.position - 50), decision.position):
                assert not self.feasible(position, decision.time), "an earlier position was feasible"

    def _on_begin(self, begin):
        assert self.start is None and begin.start >= begin.time
        assert self.has(0, ev.PIXELS)
        self.start = begin.start

    def _on_resume(self, resume):
        assert resume.position == self.cursor and resume.delay >= 0
        assert self.frozen or resume.time >= self.due(self.cursor + 1)
        self.frozen = False
        self.start += resume.delay

    def _on_missed(self, missed):
        assert missed.late > 0

    def _on_fellback(self, fell_back):
        if "late by" in fell_back.detail and fell_back.fallback == "drop":
            end = max((p + 1 for p in self.contents), default=0)
            end = max(end, self.cursor)
            if end < fell_back.position:
                self.empty.append((end, fell_back.position))

    def _on_settled(self, settled):
        record = settled.record
        if record.outcome == "identical" and record.by == record.version:
            return
        assert record.version not in self.settled, "settled twice"
        self.settled[record.version] = record
        assert record.arrival == self.arrivals[record.version]
        if record.outcome == "displayed":
            assert record.display == settled.time  # 6
            assert record.wait + record.generation + record.alignment == record.display - record.arrival
            assert min(record.wait, record.generation, record.alignment) >= 0
            shown = self.contents[self.shown[-1]]
            assert shown.version == record.version and record.position <= self.shown[-1]
            launches = [c.launch for c in self.calls.values() if c.launch.version == record.version]
            assert record.position in [launch.position for launch in launches]
            assert record.start == self.calls[shown.job].launch.time
            assert record.ready == self.ready_times[self.shown[-1], shown.job]
        elif record.outcome == "superseded":
            assert record.by > record.version
            assert not [p for p in self.shown if self.contents[p].version == record.version]

    def _on_accepted(self, accepted):
        assert isinstance(self.event, ev.Update)
        assert (accepted.version, accepted.condition) == (self.controller.version, self.event.condition)

    def _on_jobend(self, end):
        assert end.start == self.calls[end.job].launch.time
        if end.outcome == "cut":
            assert self.settings.cut_every is not None and end.job == self.active
            assert any(isinstance(o, ev.Launch) for o in self.outputs), "a call was cut for nothing"
            self.cut = self._end_call()
            self.kinds["cut"] += 1
            launch = self.cut.launch
            there = self.has(launch.position, ev.PIXELS) or launch.position < self.cursor
            assert launch.reason != "pending" or there, "a condition was cut before anything of it was there"
        else:
            assert isinstance(self.event, ev.Finish | ev.Failed | ev.Cancelled) and end.job == self.event.job

    def _on_ignored(self, ignored):
        assert ignored.reason

    def _on_ended(self, ended):
        self.closed = True
        self.active = None

    # -- after every event ----------------------------------------------------------------

    def _check(self, outputs):
        controller, state = self.controller, self.controller.state
        for position in range(max(self.cursor - 3, 0), self.irrevocable):  # 1
            if position in self.committed and not self.closed:
                assert self.contents[position].token == self.committed[position]
        assert (state.cursor, state.irrevocable) == (self.cursor, self.irrevocable)  # 5
        assert (None if self.closed else state.job and state.job.number) == self.active  # 3
        alive = [p for p, c in self.contents.items() if p >= self.cursor and not c.late]
        outstanding = 0 if self.closed else len(alive) + len(self.shelf)
        assert self.sampled == len(self.shown) + self.discarded + outstanding, "predictions lost"  # 8
        if self.closed:
            assert set(self.arrivals) == set(self.settled), "an update without a fate"  # 8
            return
        self.raise_floor()
        opened = {record.version for record in controller.open_records}
        assert opened == set(self.arrivals) - set(self.settled)  # 8
        if state.version >= 0:
            alarms = controller.next_tick is not None or controller.next_wake is not None
            assert alarms or self.active is not None, "nothing would ever happen again"
        if state.pending and self.active is None:
            assert any(isinstance(o, ev.Decision) and o.position is None for o in outputs)
        if self.active is None and state.version >= 0:
            for position in self.filled(self.cursor, state.end):  # n is the end of what is valid
                assert self.has(position, self.adapter.needs | ev.PIXELS)
            assert state.end not in self.contents or state.end < self.cursor
        horizon = controller.horizon
        assert self.irrevocable == horizon.irrevocable <= horizon.locked <= horizon.replaceable
        totals = controller.totals
        assert totals.underruns == self.kinds["Underrun"]
        assert totals.calls + totals.bootstrap_calls == len(self.calls)
        assert totals.played + totals.bootstrap_played == len(self.shown)
        assert sum(totals.discarded.values()) + totals.bootstrap_discarded == self.discarded
        assert totals.ignored == self.kinds["Ignored"]
        assert totals.missed_deadlines == self.kinds["Missed"]
