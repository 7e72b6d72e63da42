"""Jobs: what workers report, what they lose, which adapters and estimates they rely on."""

from __future__ import annotations

import pytest
from support.stream_player import Stream, one, only

from wavecore.control.clock import SECOND
from wavecore.control.speculative import BoundaryImage, Keyframes, QuantileEstimator
from wavecore.control.speculative import events as ev

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
