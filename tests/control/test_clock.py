"""Clocks: order of what is queued, sleeping, time that never goes back."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.clock import MILLISECOND, SECOND, VirtualClock, WallClock, nanoseconds
from wavecore.errors import UsageError


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 2))))
def test_virtual_items_come_by_time_rank_and_order_of_posting(posts):
    clock = VirtualClock()
    for index, (delay, rank) in enumerate(posts):
        clock.post(index, delay, rank)
    taken = [clock.wait() for _ in posts]
    expected = sorted(range(len(posts)), key=lambda index: (*posts[index], index))
    assert taken == [(posts[index][0], index) for index in expected]


def test_virtual_time_jumps_to_until_or_to_the_item_before_it():
    clock = VirtualClock(start=100)
    clock.post("late", 50)
    assert clock.wait(120) == (120, None)
    assert clock.wait(150) == (150, "late"), "an item due at `until` comes first"
    assert clock.wait(10) == (150, None), "time does not go back"
    assert clock.now() == 150
    with pytest.raises(RuntimeError, match="virtual time cannot go on"):
        clock.wait()


def test_wall_clock_waits_for_the_time_it_is_given():
    clock = WallClock()
    began = clock.now()
    clock.post("item", 20 * MILLISECOND)
    assert clock.wait(began + 10 * MILLISECOND)[1] is None
    assert clock.now() >= began + 10 * MILLISECOND
    at, item = clock.wait()
    assert item == "item"
    assert clock.now() >= at >= began + 20 * MILLISECOND


def test_wall_clock_wakes_up_for_an_item_from_another_thread():
    clock = WallClock()
    thread = threading.Timer(0.02, clock.post, ["item"])
    thread.start()
    began = time.monotonic()
    assert clock.wait(clock.now() + 10 * SECOND)[1] == "item"
    assert time.monotonic() - began < 5
    thread.join()


def test_wall_clock_holds_its_reading_when_the_source_goes_back():
    readings = iter([50, 10, 20, 60, 55, 70])
    clock = WallClock(lambda: next(readings))
    assert [clock.now() for _ in range(5)] == [50, 50, 60, 60, 70]


def test_times_of_a_busy_taker_neither_go_back_nor_hide_when_an_item_came():
    readings = itertools.chain([0, 10, 30], itertools.repeat(100))
    clock = WallClock(lambda: next(readings))
    clock.post("a")  # at 10
    clock.post("b")  # at 30
    assert clock.wait(20) == (10, "a")
    assert clock.wait(20) == (30, None), "the alarm of 20, late, but not after what is queued"
    assert clock.wait(200) == (30, "b")


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), float("-inf")])
def test_a_duration_is_finite_and_not_negative(seconds):
    with pytest.raises(UsageError, match="margin: expected a finite number of seconds"):
        nanoseconds(seconds, "margin")


def test_paused_wall_clock_takes_only_what_is_due() -> None:
    """Time stands still while paused; items due later come after `resume`, by as much later."""
    time = 0
    clock: WallClock[str] = WallClock(lambda: time)
    clock.post("later", 100)
    time = 50
    clock.pause()
    time = 500
    clock.post("now")
    assert clock.now() == 50 and clock.wait(50) == (50, "now")
    assert clock.behind == 450
    clock.resume()
    time = 549
    assert clock.wait(99) == (99, None)
    time = 550
    assert clock.wait() == (100, "later")
    assert clock.behind == 450


def test_advanced_wall_clock_reaches_what_is_queued() -> None:
    """`advance` moves the time on, paused or not."""
    time = 0
    clock: WallClock[str] = WallClock(lambda: time)
    clock.post("later", 100)
    clock.advance(100)
    assert clock.wait() == (100, "later")
    clock.pause()
    clock.advance(5)
    assert clock.now() == 105
    clock.resume()
    time = 7
    assert clock.now() == 112
