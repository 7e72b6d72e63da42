"""The controller, rule by rule, on small streams whose every time can be worked out by hand."""

from __future__ import annotations

import pytest
from support.stream_player import Stream, one, only

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import QuantileEstimator, RetainedPrefix, Settings
from wavecore.control.speculative import events as ev
from wavecore.errors import UsageError

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
