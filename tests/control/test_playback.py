"""Playback: deadlines, missing groups, clocks that jump or go back, the commit horizon."""

from __future__ import annotations

import pytest
from support.stream_player import Stream, one, only

from wavecore.control.clock import SECOND
from wavecore.control.speculative import Horizon
from wavecore.control.speculative import events as ev


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
