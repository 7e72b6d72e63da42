"""Calls that can be cut between their chunks: an interactive wave, decision by decision.

K latents of 1 s each, made in chunks of 2: the first chunk takes `seconds`, each further one 0.25 s more.
"""

from __future__ import annotations

import pytest

from wavecore.control.clock import SECOND
from wavecore.control.speculative import Controller, LatentInput, QuantileEstimator, RetainedPrefix, Settings
from wavecore.control.speculative import events as ev
from wavecore.errors import UsageError


class Stream:
    """A controller with times in seconds, and what it has shown."""

    def __init__(self, seconds=1.0, latents=8, cut_every=2, **more):
        self.each = [seconds + 0.25 * (m // 2) for m in range(latents)]
        estimator = QuantileEstimator(latents, self.each, warmup=0, margin=0.0)
        settings = Settings(adapter=RetainedPrefix(latents), group_seconds=1.0, cut_every=cut_every, **more)
        self.controller = Controller(settings, estimator)
        self.shown = {}
        self.send(ev.Update, 0, "A")
        for group in reversed(range(latents)):
            self.send(ev.Ready, 0, 0, group)
        self.send(ev.Finish, 0, 0)

    @property
    def job(self):
        return self.controller.state.job

    def send(self, kind, time, *values):
        outputs = self.controller.handle(kind(round(time * SECOND), *values))
        for output in only(outputs, ev.Display):
            assert output.position not in self.shown, "shown twice"
            self.shown[output.position] = output.version
        return outputs

    def play(self, until):
        outputs = []
        while True:
            alarms = [t for t in (self.controller.next_wake, self.controller.next_tick) if t is not None]
            if not alarms or min(alarms) > until * SECOND:
                return outputs
            kind = ev.Wake if self.controller.next_wake == min(alarms) else ev.Tick
            outputs += self.send(kind, min(alarms) / SECOND)

    def make(self, time):
        """Everything the active job has left, and its end."""
        self.play(time - 1e-9)
        job, outputs = self.job, []
        for group in range(-job.kept, job.groups):
            outputs += self.send(ev.Ready, time, job.number, group)
        return outputs + self.send(ev.Finish, time, job.number)


def only(outputs, kind):
    return [output for output in outputs if isinstance(output, kind)]


def one(outputs, kind):
    (output,) = only(outputs, kind)
    return output


def test_an_update_cuts_a_call_in_progress_where_everything_before_is_ready():
    stream = Stream()
    stream.play(7)
    old = stream.job
    assert old.position == 8
    stream.send(ev.Ready, 7.5, old.number, 0)
    stream.send(ev.Ready, 7.5, old.number, 1)
    stream.play(8)
    outputs = stream.send(ev.Update, 8.5, "B")
    launch = one(outputs, ev.Launch)
    assert (launch.position, launch.kept, launch.version) == (10, 0, 1)
    assert one(outputs, ev.JobEnd).outcome == "cut"
    assert one(outputs, ev.Discard).groups == 6


def test_chunks_in_flight_go_on_where_the_cut_has_to_lie_behind_them():
    stream = Stream()
    stream.play(7)
    old = stream.job
    outputs = stream.send(ev.Update, 7.5, "B")
    launch = one(outputs, ev.Launch)
    assert (launch.position, launch.kept) == (10, 2), "8 and 9 are in flight and in time, 7.5 + 1 <= 10"
    assert [(r.position, r.guard) for r in one(outputs, ev.Decision).rejected] == [(8, "deadline")]
    ignored = stream.send(ev.Ready, 7.9, old.number, 0)
    assert one(ignored, ev.Ignored).reason == "not the active job"
    for group in (-2, -1):
        assert one(stream.send(ev.Ready, 8, launch.job, group), ev.Publish).position == 10 + group
    assert one(stream.send(ev.Ready, 8, launch.job, -3), ev.Ignored)
    shown = [(o.position, o.version) for o in only(stream.play(9), ev.Display)]
    assert shown == [(8, 0), (9, 0)]
    stream.make(9.5)
    record = one(stream.play(10), ev.Settled).record
    assert (record.outcome, record.position, record.wait, record.response) == (
        "displayed",
        10,
        0,
        2.5 * SECOND,
    )
    assert stream.controller.totals.underruns == 0


def test_a_second_update_waits_for_the_first_chunk_of_the_one_before():
    stream = Stream()
    stream.play(7)
    first = one(stream.send(ev.Update, 7.25, "B"), ev.Launch)
    assert (first.position, first.kept) == (10, 2)
    assert not only(stream.send(ev.Update, 7.5, "C"), ev.Launch)
    for group in (-2, -1):
        assert not only(stream.send(ev.Ready, 8, first.job, group), ev.Launch)
    launch = one(stream.send(ev.Ready, 8.25, first.job, 0), ev.Launch)
    assert (launch.position, launch.kept, launch.version) == (10, 0, 2), "B is not shown yet"


def test_a_call_is_not_cut_where_waiting_for_its_end_answers_sooner():
    """At 8.9 s the round under way ends too late for 10; the next chunk begins at 12, the call ends at 9."""
    stream = Stream()
    stream.play(7)
    old = stream.job
    for group in range(2):
        stream.send(ev.Ready, 8, old.number, group)
    stream.play(8.5)
    outputs = stream.send(ev.Update, 8.9, "B")
    assert not only(outputs, ev.Launch)
    rejected = [(r.position, r.guard, r.short / SECOND) for r in one(outputs, ev.Decision).rejected]
    assert rejected == [
        (9, "deadline", pytest.approx(1.15)),
        (10, "deadline", pytest.approx(0.15)),
        (12, "sooner after the job", 2.0),
    ]
    assert not only(stream.send(ev.Ready, 8.95, old.number, 2), ev.Decision), "it is said once"
    launch = one(stream.make(9), ev.Launch)
    assert (launch.position, launch.version, launch.kept) == (10, 1, 0)


def test_what_a_cut_takes_longer_is_measured_and_counted_on():
    """A first cut counts on a whole round, 0.25 s; once one took 0.1 s, the next counts on that."""
    stream = Stream()
    stream.play(7)
    launch = one(stream.send(ev.Update, 7.5, "B"), ev.Launch)
    for group in (-2, -1):
        stream.send(ev.Ready, 8, launch.job, group)
    for group in range(2):
        stream.send(ev.Ready, 8.6, launch.job, group)
    outputs = stream.send(ev.Update, 8.89, "C")
    assert one(outputs, ev.Launch).position == 10, "8.89 + 1 + 0.1 <= 10"
    assert stream.controller.guards.cut_delay == SECOND // 10
    assert stream.controller.guards.latencies[0] == SECOND, "calls that cut no other have their own estimate"


def test_a_cut_call_that_fails_loses_what_was_in_flight_and_is_made_again():
    stream = Stream()
    stream.play(7)
    launch = one(stream.send(ev.Update, 7.5, "B"), ev.Launch)
    outputs = stream.send(ev.Failed, 7.6, launch.job, "lost")
    again = one(outputs, ev.Launch)
    assert (again.version, again.position, again.kept, again.reason) == (1, 8, 0, "late")
    stream.make(8.6)
    assert one(stream.play(20), ev.Settled).record.outcome == "displayed"


def test_calls_of_one_piece_are_not_cut():
    stream = Stream(cut_every=None)
    stream.play(7)
    assert stream.job is not None
    assert not only(stream.send(ev.Update, 7.5, "B"), ev.Launch)


def test_updates_at_any_rate_never_stop_a_stream_whose_calls_can_be_cut():
    """Every update cuts the call of the one before; what is played stays in time."""
    stream = Stream(seconds=0.5)
    time = 0.0
    for index in range(400):
        time += 0.05
        job = stream.job
        for group in range(-job.kept, job.groups) if job is not None else ():
            if job.start / SECOND + stream.each[max(group, 0)] <= time:
                stream.send(ev.Ready, time, job.number, group)  # again and again, which changes nothing
        stream.play(time)
        stream.send(ev.Update, time, f"prompt {index}")
    totals = stream.controller.totals
    assert totals.displayed >= 5 and totals.underruns == 0
    assert list(stream.shown) == list(range(len(stream.shown))) and len(stream.shown) >= 19
    assert totals.superseded + totals.displayed + len(stream.controller.open_records) == 400


def test_a_wrong_chunk_is_named():
    with pytest.raises(UsageError, match="cut_every: expected at least 1, got 0"):
        Settings(adapter=RetainedPrefix(4), group_seconds=1.0, cut_every=0)
    with pytest.raises(
        UsageError, match="cut_every: expected an adapter that regenerates nothing, got latent"
    ):
        Settings(adapter=LatentInput(4), group_seconds=1.0, cut_every=2)
