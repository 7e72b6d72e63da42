"""The runner: tickets of updates, whatever happens to the stream meanwhile."""

from __future__ import annotations

import threading
import time
from functools import partial

import pytest

from wavecore.control.clock import SECOND, VirtualClock, WallClock
from wavecore.control.speculative import Controller, QuantileEstimator, RetainedPrefix, Settings
from wavecore.control.speculative import events as ev
from wavecore.control.speculative.runner import Runner
from wavecore.errors import UsageError


class Stream:
    """A runner in virtual time; calls of 4 latents of 1 s each take 1 s."""

    def __init__(self):
        settings = Settings(adapter=RetainedPrefix(4), group_seconds=1.0)
        estimator = QuantileEstimator(4, [1.0] * 4, warmup=0, margin=0.0)
        self.clock, self.seen, self.events = VirtualClock(), [], []
        self.runner = Runner(Controller(settings, estimator), self.clock, self.perform, self.events.append)

    def perform(self, output):
        self.seen.append(output)
        if isinstance(output, ev.Launch):
            for group in range(output.groups):
                self.clock.post(partial(ev.Ready, job=output.job, group=group), SECOND)
            self.clock.post(partial(ev.Finish, job=output.job), SECOND, rank=1)

    def until(self, time):
        while self.clock.now() < time * SECOND:
            self.runner.step()


def test_a_ticket_resolves_when_the_fate_of_its_update_is_known():
    stream = Stream()
    first = stream.runner.update("A")
    stream.until(2)
    tickets = [stream.runner.update(prompt) for prompt in "BCDD"]
    stream.until(9)
    outcomes = [(ticket.result(0).outcome, ticket.result(0).by) for ticket in tickets]
    assert outcomes == [("displayed", None), ("superseded", 3), ("displayed", None), ("identical", 3)]
    assert tickets[2].result(0).response <= 3 * SECOND
    assert not first.done(), "the first condition has no update that it answers"
    stream.runner.close()
    stream.runner.run()
    assert first.result(0).outcome == "lost"


def test_an_update_that_is_on_its_way_when_the_stream_ends_is_lost_not_forgotten():
    stream = Stream()
    stream.runner.update("A")
    stream.until(2)
    stream.runner.close()
    ticket = stream.runner.update("B")
    stream.runner.run()
    assert ticket.result(0).outcome == "lost"
    with pytest.raises(UsageError, match="update: expected an open stream, got a closed one"):
        stream.runner.update("C")
    stream.runner.close()


def test_an_update_of_a_stream_that_has_ended_by_itself_is_lost():
    stream = Stream()
    stream.runner.update("A")
    stream.until(2)
    stream.clock.post(ev.Close)
    pending = stream.runner.update("B")
    while not stream.runner.controller.closed:
        stream.runner.step()
    assert pending.result(0).outcome == "lost"
    assert stream.runner.update("C").result(0).outcome == "lost"


def test_who_asks_faster_than_updates_are_handled_waits():
    stream = Stream()
    runner = Runner(stream.runner.controller, WallClock(), stream.perform)
    go, arrived = threading.Event(), threading.Semaphore(0)
    runner.clock.post(lambda time: go.wait() and ev.Wake(time))  # the runner stands still meanwhile
    running = threading.Thread(target=runner.run)
    running.start()
    while runner._taker is None:
        time.sleep(0.001)
    tickets = []

    def ask():
        for index in range(200):
            tickets.append(runner.update(f"prompt {index}"))
            arrived.release()

    asking = threading.Thread(target=ask)
    asking.start()
    for _ in range(64):
        assert arrived.acquire(timeout=60)
    assert not arrived.acquire(timeout=0.2), "the 65th waits"
    go.set()
    asking.join(60)
    runner.close()
    running.join(60)
    assert len(tickets) == 200 and all(ticket.done() for ticket in tickets)


def test_every_event_is_observed_before_it_is_handled():
    stream = Stream()
    stream.runner.update("A")
    stream.until(3)
    kinds = [type(event).__name__ for event in stream.events]
    assert kinds[:6] == ["Update", "Ready", "Ready", "Ready", "Ready", "Finish"]
    replayed = Controller(
        stream.runner.controller.settings, QuantileEstimator(4, [1.0] * 4, warmup=0, margin=0)
    )
    again = [output for event in stream.events for output in replayed.handle(event)]
    assert again == stream.seen


def test_what_a_callback_says_after_the_end_is_not_handled():
    stream = Stream()
    stream.runner.update("A")
    stream.until(1)
    stream.runner.close()
    stream.runner.run()
    handled = len(stream.events)
    stream.clock.post(partial(ev.Ready, job=0, group=0))
    stream.runner.run()
    assert len(stream.events) == handled
