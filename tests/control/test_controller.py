"""The controller, rule by rule, on small streams whose every time can be worked out by hand.

Unless said otherwise: K = 4 latents of 1 s each, a call takes 1 s to all of its groups.
"""

from __future__ import annotations

import pytest
from support.stream_world import World

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import (
    BoundaryImage,
    Controller,
    Horizon,
    Keyframes,
    QuantileEstimator,
    RetainedPrefix,
    Settings,
)
from wavecore.control.speculative import events as ev
from wavecore.errors import UsageError


class Stream:
    """A `World` with times in seconds."""

    def __init__(self, adapter=None, seconds=1.0, margin=0.0, lead=None, estimator=None, **settings):
        adapter = RetainedPrefix(4) if adapter is None else adapter
        estimator = estimator or QuantileEstimator(
            adapter.latents, [seconds] * adapter.latents, warmup=0, margin=margin, lead=lead
        )
        chosen = Settings(adapter=adapter, group_seconds=1.0, **settings)
        self.controller = Controller(chosen, estimator)
        self.world = World(self.controller)

    def send(self, kind, time, *values):
        return self.world.send(kind(round(time * SECOND), *values))

    def begin(self):
        """Bootstrap under "A" in no time, so that position j is due at j seconds."""
        self.send(ev.Update, 0, "A")
        for group in reversed(range(self.job.groups)):
            self.send(ev.Ready, 0, 0, group)
        self.send(ev.Finish, 0, 0)
        return self

    @property
    def job(self):
        return self.controller.state.job

    def make(self, time, groups=None):
        """The active job makes `groups` groups, or all and ends; before, playback goes on up to then."""
        self.play(time - 1e-9)
        job = self.job
        outputs = []
        for group in range(job.groups if groups is None else groups):
            outputs += self.send(ev.Ready, time, job.number, group)
        return outputs + (self.send(ev.Finish, time, job.number) if groups is None else [])

    def play(self, until):
        """Alarms as they are due, up to and with `until`."""
        outputs = []
        while True:
            alarms = [t for t in (self.controller.next_wake, self.controller.next_tick) if t is not None]
            if not alarms or min(alarms) > until * SECOND:
                return outputs
            time = min(alarms)
            kind = ev.Wake if self.controller.next_wake == time else ev.Tick
            outputs += self.world.send(kind(time))


def only(outputs, kind):
    return [output for output in outputs if isinstance(output, kind)]


def one(outputs, kind):
    (output,) = only(outputs, kind)
    return output


# -- startup ------------------------------------------------------------------------------


def test_the_first_update_starts_a_bootstrap_call_and_playback_follows():
    stream = Stream()
    launch = one(stream.send(ev.Update, 5, "A"), ev.Launch)
    assert (launch.position, launch.groups, launch.version, launch.reason) == (0, 4, 0, "bootstrap")
    assert stream.controller.state_name == "Produce"
    assert stream.controller.next_tick is None
    outputs = stream.make(7)
    begin = one(outputs, ev.Begin)
    assert (begin.start, begin.startup) == (7 * SECOND, 2 * SECOND)
    assert stream.controller.next_tick == 7 * SECOND
    assert stream.controller.state_name == "Consume"
    assert stream.controller.totals.startup == 2 * SECOND
    assert stream.controller.totals.calls == 0, "bootstrap is counted apart"


def test_playback_begins_when_the_rest_is_expected_in_time():
    """Groups at 2, 4, 6 and 8 s play for 1 s each: the last one allows a start at 5 s."""
    estimator = QuantileEstimator(4, [2, 4, 6, 8], warmup=0, margin=0.5)
    stream = Stream(estimator=estimator)
    stream.send(ev.Update, 0, "A")
    assert one(stream.send(ev.Ready, 2, 0, 0), ev.Begin).start == 5.5 * SECOND


def test_without_estimates_playback_begins_when_all_is_ready():
    stream = Stream(estimator=QuantileEstimator(4))
    stream.send(ev.Update, 0, "A")
    assert not only(stream.make(3, groups=3), ev.Begin)
    assert one(stream.send(ev.Ready, 4, 0, 3), ev.Begin).start == 4 * SECOND


def test_an_update_during_bootstrap_waits_and_is_launched_after_it():
    stream = Stream()
    stream.send(ev.Update, 0, "A")
    assert not only(stream.send(ev.Update, 0.5, "B"), ev.Launch)
    launch = one(stream.make(1), ev.Launch)
    assert (launch.version, launch.position, launch.reason) == (1, 1, "pending")


# -- dispatch -----------------------------------------------------------------------------


def test_an_update_takes_the_earliest_feasible_position_and_says_why_not_an_earlier_one():
    stream = Stream(margin=0.25).begin()
    stream.play(0)
    outputs = stream.send(ev.Update, 0.5, "B")
    assert one(outputs, ev.Launch).position == 2, "0.5 + 1 + 0.25 <= 2"
    decision = one(outputs, ev.Decision)
    assert [(r.position, r.guard, r.short / MILLISECOND) for r in decision.rejected] == [
        (1, "deadline", 750.0)
    ]
    assert one(outputs, ev.Discard) == ev.Discard(SECOND // 2, 2, 4, 2, "replaced")


def test_a_deadline_that_is_met_exactly_is_met():
    stream = Stream().begin()
    stream.play(0)
    assert one(stream.send(ev.Update, 1, "B"), ev.Launch).position == 2


def test_every_group_must_be_in_time():
    """Groups come 1.75 s apart but play for 1 s: the last one needs 0.5 + 3 * 0.75 s, not the first."""
    estimator = QuantileEstimator(4, [0.5, 2.25, 4.0, 5.75], warmup=0, margin=0.0)
    stream = Stream(estimator=estimator).begin()
    stream.play(0)
    assert one(stream.send(ev.Update, 0.1, "B"), ev.Launch).position == 3
    assert one(stream.world.outputs, ev.Decision).rejected[-1].short == 0.85 * SECOND


def test_a_refill_comes_when_coverage_is_down_to_the_lead():
    stream = Stream(margin=0.25).begin()
    assert stream.controller.next_wake == 2.5 * SECOND, "4 s of coverage, lead 1 + 2 * 0.25"
    assert not only(stream.play(2.4), ev.Launch)
    launch = one(stream.play(2.5), ev.Launch)
    assert (launch.position, launch.reason) == (4, "refill")


def test_an_update_waits_for_the_active_job_and_keeps_its_result_only_where_it_must():
    stream = Stream().begin()
    stream.play(3)
    assert stream.job.position == 4
    assert not only(stream.send(ev.Update, 3.25, "B"), ev.Launch)
    outputs = stream.make(4)
    assert one(outputs, ev.Launch).position == 5
    assert one(outputs, ev.Discard).groups == 3
    stream.make(5)
    record = one(stream.play(5), ev.Settled).record
    assert (record.wait, record.generation, record.alignment) == (0.75 * SECOND, SECOND, 0)
    assert record.response == 1.75 * SECOND
    assert (record.position, record.why, record.passed) == (5, "pending", 1)


def test_a_pending_version_may_take_the_append_position():
    stream = Stream(seconds=4.0, lead=0.0).begin()
    launch = one(stream.send(ev.Update, 0, "B"), ev.Launch)
    assert (launch.position, launch.reason) == (4, "pending")


def test_a_pending_version_alone_launches_nothing():
    """No position is feasible, and coverage is above the lead: wait for the refill."""
    stream = Stream(seconds=4.5, lead=1.0).begin()
    stream.play(0)
    outputs = stream.send(ev.Update, 0.5, "B")
    decision = one(outputs, ev.Decision)
    assert decision.position is None
    assert [r.short / SECOND for r in decision.rejected] == [4.0, 3.0, 2.0, 1.0]
    assert not only(outputs, ev.Launch)
    outputs = stream.play(3)
    assert one(outputs, ev.Launch).reason == "late"
    assert one(outputs, ev.Launch).version == 1


def test_conditions_of_a_running_job_never_change():
    stream = Stream().begin()
    stream.play(0)
    first = one(stream.send(ev.Update, 0, "B"), ev.Launch)
    stream.send(ev.Update, 0.5, "C")
    assert stream.job.version == first.version == 1
    assert one(stream.make(1), ev.Launch).condition == "C"


# -- updates ------------------------------------------------------------------------------


def test_a_replaced_pending_version_is_superseded():
    stream = Stream().begin()
    stream.play(3)
    stream.send(ev.Update, 3.1, "B")
    record = one(stream.send(ev.Update, 3.2, "C"), ev.Settled).record
    assert (record.version, record.outcome, record.by, record.start) == (1, "superseded", 2, None)


def test_a_launched_version_that_is_replaced_before_it_is_shown_is_superseded():
    stream = Stream().begin()
    stream.play(0)
    stream.send(ev.Update, 0, "B")
    assert stream.job.position == 1
    stream.make(0.9)
    outputs = stream.send(ev.Update, 0.95, "C")
    assert one(outputs, ev.Launch).position == 2, "B is shown at 1 s"
    stream = Stream(seconds=0.25).begin()
    stream.play(0)
    stream.send(ev.Update, 0, "B")
    stream.make(0.25)
    outputs = stream.send(ev.Update, 0.5, "C")
    assert one(outputs, ev.Launch).position == 1
    record = one(outputs, ev.Settled).record
    assert (record.version, record.outcome, record.by) == (1, "superseded", 2)


def test_an_update_identical_to_the_current_condition_makes_no_branch():
    stream = Stream().begin()
    outputs = stream.send(ev.Update, 0, "A")
    record = one(outputs, ev.Settled).record
    assert (record.outcome, record.version, stream.controller.version) == ("identical", 0, 0)
    assert not only(outputs, ev.Launch)


def test_going_back_to_what_is_made_already_makes_no_branch():
    """B waits behind the refill under A; A again: nothing is to be done."""
    stream = Stream().begin()
    stream.play(3)
    stream.send(ev.Update, 3.25, "B")
    outcomes = [o.record.outcome for o in only(stream.send(ev.Update, 3.5, "A"), ev.Settled)]
    assert outcomes == ["superseded", "identical"]
    assert not only(stream.make(4), ev.Launch)


def test_a_thousand_updates_a_second():
    stream = Stream().begin()
    launched, updates = 0, 3000
    for index in range(updates):
        time = index / 1000
        if stream.job is not None and time * SECOND >= stream.job.start + SECOND:
            launched += len(only(stream.make(time), ev.Launch))
        stream.play(time)
        launched += len(only(stream.send(ev.Update, time, f"prompt {index}"), ev.Launch))
    while stream.job is not None:
        stream.make(stream.job.start / SECOND + 1)
    stream.play(stream.world.time / SECOND)
    totals = stream.controller.totals
    assert launched <= 4
    assert totals.superseded + totals.displayed == updates
    assert set(stream.world.settled) == set(range(1, updates + 1))
    assert stream.world.settled[updates].outcome == "displayed"
    assert totals.underruns == 0


def test_conditions_that_do_not_compare_to_a_truth_value_are_different():
    numpy = pytest.importorskip("numpy")
    stream = Stream().begin()
    stream.send(ev.Update, 0, numpy.zeros(2))
    assert not only(stream.send(ev.Update, 0.1, numpy.zeros(2)), ev.Settled)
    assert stream.controller.version == 2


# -- playback -----------------------------------------------------------------------------


def test_a_group_that_is_not_ready_freezes_the_stream_until_it_is():
    stream = Stream().begin()
    stream.play(3)
    underrun = one(stream.play(4.5), ev.Underrun)
    assert (underrun.position, underrun.time, underrun.fallback) == (4, 4 * SECOND, "freeze")
    assert stream.controller.next_tick is None
    outputs = stream.send(ev.Ready, 4.75, stream.job.number, 0)
    assert one(outputs, ev.Missed).late == 0.75 * SECOND
    assert one(outputs, ev.Resume).delay == 0.75 * SECOND
    assert one(stream.play(4.75), ev.Display).position == 4
    assert stream.controller.next_tick == 5.75 * SECOND
    assert stream.controller.totals.frozen == 0.75 * SECOND


def test_drop_keeps_the_plan_and_leaves_out_what_is_late():
    stream = Stream(fallback="drop").begin()
    stream.play(3)
    assert one(stream.play(4.5), ev.Underrun).fallback == "drop"
    outputs = stream.make(4.75)
    assert {o.position for o in only(outputs, ev.Publish) if o.parts & ev.PIXELS} == {5, 6, 7}
    assert [o.position for o in only(stream.play(6), ev.Display)] == [5, 6]
    assert stream.controller.totals.discarded == {"late": 1}


def test_drop_launches_where_deadlines_can_be_met_again():
    stream = Stream(fallback="drop").begin()
    stream.play(3)
    number = stream.job.number
    outputs = stream.send(ev.Failed, 3.5, number, "out of memory")
    launch = one(outputs, ev.Launch)
    assert (launch.position, launch.reason) == (5, "late"), "3.5 + 1 > 4"
    stream.make(4.5)
    displayed = only(stream.play(5), ev.Display)
    assert [o.position for o in displayed] == [5]
    assert stream.controller.totals.missed_groups == 1


def test_a_spurious_or_early_tick_changes_nothing():
    stream = Stream().begin()
    stream.play(0)
    assert one(stream.send(ev.Tick, 0.5), ev.Ignored).reason == "nothing is due yet"
    assert stream.controller.state.cursor == 1


def test_a_clock_that_jumps_moves_the_plan_or_drops():
    stream = Stream().begin()
    stream.play(0)
    outputs = stream.send(ev.Tick, 2.5)
    assert one(outputs, ev.Resume).delay == 1.5 * SECOND
    assert one(outputs, ev.Display).position == 1
    stream = Stream(fallback="drop").begin()
    stream.play(0)
    outputs = stream.send(ev.Tick, 2.5)
    assert one(outputs, ev.Display).position == 2
    assert (one(outputs, ev.Underrun).position, one(outputs, ev.Underrun).groups) == (1, 1)


@pytest.mark.parametrize("fallback", ["freeze", "drop"])
def test_a_jump_of_years_costs_no_time_and_no_memory(fallback):
    stream = Stream(fallback=fallback).begin()
    stream.send(ev.Tick, 1e9)
    stream.send(ev.Update, 1e9 + 0.5, "B")
    assert len(stream.controller.state.predictions) <= 8
    stream.make(1e9 + 1.5)
    assert only(stream.play(1e9 + 4), ev.Display)


def test_an_event_before_the_latest_one_happens_at_the_latest_one():
    stream = Stream().begin()
    stream.play(2)
    outputs = stream.send(ev.Update, 0.5, "B")
    assert one(outputs, ev.Ignored).reason == "its clock is 1500.0 ms behind; it happens now"
    assert one(outputs, ev.Launch).time == 2 * SECOND


def test_commit_comes_before_display_and_moves_the_horizon():
    stream = Stream(commit_lead=1.5, lead=0.0)
    stream.send(ev.Update, 0, "A")
    stream.make(1)
    assert stream.controller.state.plan.start == 2.5 * SECOND
    outputs = stream.play(1)
    assert one(outputs, ev.Commit).position == 0
    assert not only(outputs, ev.Display)
    outputs = stream.play(2.5)
    assert [o.position for o in only(outputs, ev.Commit)] == [1]
    assert [o.position for o in only(outputs, ev.Display)] == [0]
    assert stream.controller.horizon == Horizon(2, 2, 4)
    outputs = stream.send(ev.Update, 2.75, "B")
    assert one(outputs, ev.Launch).position == 3, "2.75 + 1 + 1.5 <= 2.5 + 3"
    assert stream.controller.horizon == Horizon(2, 3, 3)


# -- the worker ---------------------------------------------------------------------------


def test_groups_are_delivered_while_the_job_runs():
    stream = Stream().begin()
    stream.play(3)
    stream.send(ev.Ready, 3.5, stream.job.number, 0)
    stream.send(ev.Ready, 3.5, stream.job.number, 1)
    assert [o.position for o in only(stream.play(5), ev.Display)] == [4, 5]
    assert stream.controller.state_name == "Produce"


def test_an_unready_pixel_group_is_never_shown():
    stream = Stream().begin()
    stream.play(3)
    stream.send(ev.Ready, 3.5, stream.job.number, 0, ev.LATENT | ev.CONTEXT)
    assert one(stream.play(4), ev.Underrun).position == 4


def test_stale_and_duplicate_callbacks_change_nothing():
    stream = Stream().begin()
    stream.play(3)
    number = stream.job.number
    for outputs in (
        stream.send(ev.Ready, 3.1, number - 1, 0),
        stream.send(ev.Finish, 3.1, number - 1),
        stream.send(ev.Failed, 3.1, number + 1),
        stream.send(ev.Ready, 3.1, number, 4),
        stream.send(ev.Ready, 3.1, number, -1),
    ):
        assert [type(o) for o in outputs] == [ev.Ignored]
    stream.send(ev.Ready, 3.2, number, 0)
    assert [type(o) for o in stream.send(ev.Ready, 3.2, number, 0)] == [ev.Ignored]


def test_a_worker_that_never_answers_is_told_to_end_and_keeps_its_slot():
    stream = Stream(job_timeout=5.0).begin()
    stream.play(3)
    number = stream.job.number
    outputs = stream.play(100)
    assert one(outputs, ev.Cancel).reason == "no end after 5000.0 ms"
    stream.send(ev.Update, 101, "B")
    assert stream.job.number == number, "the slot is free when the worker confirms"
    assert (stream.controller.next_tick, stream.controller.next_wake) == (None, None)
    launch = one(stream.send(ev.Cancelled, 102, number), ev.Launch)
    assert (launch.version, launch.reason) == (1, "late")


def test_a_job_that_ends_without_all_groups_keeps_those_that_are_complete():
    stream = Stream().begin()
    stream.play(3)
    number = stream.job.number
    stream.send(ev.Ready, 3.5, number, 0)
    stream.send(ev.Ready, 3.5, number, 1, ev.PIXELS)
    outputs = stream.send(ev.Finish, 3.6, number)
    assert one(outputs, ev.Discard).first == 5
    assert stream.controller.state.end == 5 or one(outputs, ev.Launch).position == 5


def test_irrevocable_groups_without_context_stay_a_gap():
    stream = Stream().begin()
    stream.play(3)
    number = stream.job.number
    stream.send(ev.Ready, 3.5, number, 0, ev.PIXELS)
    stream.play(4)
    stream.send(ev.Failed, 4.25, number)
    assert one(stream.play(4.75), ev.Launch).position == 5


@pytest.mark.parametrize("fallback", ["freeze", "drop", "retarget"])
def test_a_failed_branch_is_tried_again(fallback):
    stream = Stream(fallback=fallback).begin()
    stream.play(0)
    number = one(stream.send(ev.Update, 0, "B"), ev.Launch).job
    outputs = stream.send(ev.Failed, 0.5, number, "lost")
    launch = one(outputs, ev.Launch)
    expected = {"freeze": (1, "late"), "drop": (2, "late"), "retarget": (2, "pending")}[fallback]
    assert (launch.version, launch.position, launch.reason) == (1, *expected)
    assert only(outputs, ev.FellBack)[0].fallback == fallback
    stream.make(1.5)
    record = one(stream.play(2.5), ev.Settled).record
    assert (record.outcome, record.launches) == ("displayed", 2)
    assert record.wait == 0.5 * SECOND
    if fallback == "retarget":
        assert stream.controller.totals.underruns == 0, "what was replaced has covered the loss"


def test_stale_restores_what_was_replaced_and_leaves_the_condition_to_the_refill():
    stream = Stream(fallback="stale").begin()
    stream.play(0)
    outputs = stream.send(ev.Update, 0, "B")
    assert one(outputs, ev.Shelve) == ev.Shelve(0, 1, 4)
    number = one(outputs, ev.Launch).job
    outputs = stream.send(ev.Failed, 0.5, number, "lost")
    assert one(outputs, ev.Restore) == ev.Restore(SECOND // 2, 1, 4)
    assert not only(outputs, ev.Launch)
    assert one(stream.play(3), ev.Launch).version == 1
    stream.make(4)
    record = one(stream.play(4), ev.Settled).record
    assert (record.outcome, record.why) == ("displayed", "refill")
    assert stream.controller.totals.underruns == 0


@pytest.mark.parametrize("fallback", ["stale", "retarget"])
def test_nothing_is_restored_behind_what_is_irrevocable(fallback):
    stream = Stream(fallback=fallback).begin()
    stream.play(0)
    number = one(stream.send(ev.Update, 0, "B"), ev.Launch).job
    stream.send(ev.Ready, 0.9, number, 0)
    outputs = stream.play(1)
    assert one(outputs, ev.Discard).reason == "replaced", "the shelf is given up with the first commit"
    outputs = stream.send(ev.Failed, 1.5, number, "lost")
    assert not only(outputs, ev.Restore)
    assert one(outputs, ev.Launch).position == 2


def test_failures_in_a_row_end_the_stream():
    stream = Stream(failure_limit=2).begin()
    stream.play(3)
    stream.send(ev.Failed, 3.1, stream.job.number, "first")
    outputs = stream.send(ev.Failed, 3.2, stream.job.number, "second")
    assert one(outputs, ev.Ended).reason == "2 jobs in a row failed, the last one because second"
    assert stream.controller.closed


def test_a_failed_bootstrap_is_tried_again():
    stream = Stream()
    stream.send(ev.Update, 0, "A")
    stream.send(ev.Ready, 0.5, 0, 0, ev.LATENT)
    launch = one(stream.send(ev.Failed, 1, 0), ev.Launch)
    assert (launch.job, launch.position, launch.reason) == (1, 0, "bootstrap")
    stream.make(2)
    assert stream.controller.totals.startup == 2 * SECOND
    assert stream.controller.totals.bootstrap_calls == 2


# -- adapters -----------------------------------------------------------------------------


def test_a_boundary_image_needs_pixels_only():
    stream = Stream(BoundaryImage(4))
    stream.send(ev.Update, 0, "A")
    for group in reversed(range(4)):
        stream.send(ev.Ready, 0, 0, group, ev.PIXELS)
    stream.send(ev.Finish, 0, 0)
    launch = one(stream.send(ev.Update, 0.5, "B"), ev.Launch)
    assert (launch.position, launch.trimmed, launch.groups) == (2, 1, 3)


def test_keyframes_branch_in_phase():
    stream = Stream(Keyframes(8, group=2)).begin()
    stream.play(0)
    outputs = stream.send(ev.Update, 1.5, "B")
    launch = one(outputs, ev.Launch)
    assert (launch.position, launch.trimmed, launch.groups) == (4, 2, 6)
    assert [(r.position, r.guard) for r in one(outputs, ev.Decision).rejected] == [
        (1, "deadline"),
        (2, "deadline"),
        (3, "context ready"),
    ]


# -- estimates ----------------------------------------------------------------------------


NAN, INFINITE = float("nan"), float("inf")


class Broken(QuantileEstimator):
    """Answers what it is told to."""

    def __init__(self, answer, margin=0):
        super().__init__(4)
        self.answer, self.answered_margin = answer, margin

    def latencies(self):
        return self.answer

    def margin(self):
        return self.answered_margin


@pytest.mark.parametrize(
    "answer",
    [
        [float("nan")] * 4,
        [-1, 0, 0, 0],
        [0, 0, 0, float("inf")],
        [0, 0, 0],
        [float("-inf"), float("inf"), 0, 0],
    ],
)
def test_invalid_estimates_are_noted_and_the_last_valid_ones_stay(answer):
    estimator = Broken([SECOND] * 4)
    stream = Stream(estimator=estimator).begin()
    estimator.answer = answer
    stream.play(3)
    outputs = stream.make(4)
    assert "latencies: expected 4 finite numbers" in one(outputs, ev.Ignored).reason
    assert stream.controller.guards.latencies == (SECOND,) * 4
    assert one(stream.send(ev.Update, 4, "B"), ev.Launch).position == 5


def test_an_invalid_margin_is_noted():
    estimator = Broken([SECOND] * 4, margin=float("nan"))
    stream = Stream(estimator=estimator)
    ignored = one(stream.send(ev.Update, 0, "A"), ev.Ignored)
    assert ignored.reason == "margin: expected finite nanoseconds, 0 or more, got nan"
    assert stream.controller.guards.margin == 0


@pytest.mark.parametrize("fallback", ["freeze", "drop"])
def test_without_any_valid_estimate_the_stream_goes_on(fallback):
    stream = Stream(estimator=Broken([float("nan")] * 4), fallback=fallback)
    stream.send(ev.Update, 0, "A")
    stream.make(1)
    for _ in range(3):
        until = stream.world.time / SECOND
        while stream.job is None:
            until += 0.5
            stream.play(until)
        stream.make(stream.job.start / SECOND + 1)
    assert len(stream.world.shown) >= 10


# -- the end ------------------------------------------------------------------------------


def test_close_settles_everything_and_nothing_happens_afterwards():
    stream = Stream().begin()
    stream.play(3)
    number = stream.job.number
    stream.send(ev.Update, 3.5, "B")
    outputs = stream.send(ev.Close, 3.6)
    assert one(outputs, ev.Cancel).job == number
    assert one(outputs, ev.Settled).record.outcome == "lost"
    assert one(outputs, ev.Ended).reason == "closed"
    for event in (ev.Ready(9, number, 0), ev.Finish(9, number), ev.Update(9, "C"), ev.Tick(9), ev.Close(9)):
        outputs = stream.world.send(event)
        assert [(type(o), o.reason) for o in outputs] == [(ev.Ignored, "the stream is closed")]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"fallback": "panic"}, "fallback: expected one of freeze, drop, stale, retarget, got 'panic'"),
        ({"job_timeout": 0.0}, "job_timeout: expected more than 0"),
        ({"job_timeout": float("nan")}, "job_timeout: expected a finite"),
        ({"commit_lead": -1.0}, "commit_lead: expected a finite"),
        ({"failure_limit": 0}, "failure_limit: expected at least 1"),
        ({"first_group_seconds": [0.0]}, "first durations: expected at least a nanosecond"),
    ],
)
def test_wrong_settings(more, message):
    with pytest.raises(UsageError, match=message):
        Settings(adapter=RetainedPrefix(4), group_seconds=1.0, **more)
