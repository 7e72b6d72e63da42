"""Drives a controller against a clock: the same loop in wall-clock time and in virtual time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from wavecore.control.clock import Clock
from wavecore.control.speculative.accounting import UpdateRecord
from wavecore.control.speculative.controller import Controller
from wavecore.control.speculative.events import (
    Close,
    Event,
    Output,
    Settled,
    Tick,
    Update,
    Wake,
)
from wavecore.errors import UsageError

Item = Callable[[int], Event]
"""What is queued: makes an event of the time at which it is taken, such as ``partial(Finish, job=3)``."""

Perform = Callable[[Output], None]


class Runner:
    """Takes events from a clock's queue, and passes what the controller wants done to `perform`.

    Workers report by `clock.post(partial(Ready, job=..., group=...))`, from any thread.

    Parameters
    ----------
    controller : Controller
    clock : Clock
    perform : callable
        Gets every output, in order, in the thread that calls `run`. It must not block for long: a tick
        cannot come on time while it does.
    observe : callable, optional
        Gets every event before it is handled.

    Attributes
    ----------
    horizon : Horizon
        As of the latest event; may be read from any thread.
    """

    def __init__(
        self,
        controller: Controller,
        clock: Clock[Item],
        perform: Perform,
        observe: Callable[[Event], None] | None = None,
    ) -> None:
        self.controller = controller
        self.clock = clock
        self.horizon = controller.horizon
        self._perform = perform
        self._observe = observe
        self._tickets: dict[int, Future[UpdateRecord]] = {}
        self._queued: set[Future[UpdateRecord]] = set()  # asked for and not handled yet
        self._lock = threading.Lock()
        self._over = False

    def update(self, condition: Any) -> Future[UpdateRecord]:
        """Ask for a condition, from any thread; the first one starts the stream.

        Returns
        -------
        Future of UpdateRecord
            Resolves when the fate of the update is known; that of the first condition at the end.
        """
        ticket: Future[UpdateRecord] = Future()
        self._post(_Asked(condition, ticket))
        return ticket

    def close(self) -> None:
        """End the stream, from any thread."""
        with self._lock:
            over = self._over
        if not over:
            self.clock.post(Close)

    def run(self) -> None:
        """Handle events until the controller is closed."""
        try:
            while not self.controller.closed:
                self.step()
        finally:
            with self._lock:
                self._over = True
            left = [*self._tickets.items(), *((self.controller.version, ticket) for ticket in self._queued)]
            for version, ticket in left:
                ticket.set_result(UpdateRecord(version, self.clock.now(), outcome="lost"))
            self._tickets.clear()
            self._queued.clear()

    def step(self) -> None:
        """Handle one event, waiting for it."""
        controller = self.controller
        tick, wake = controller.next_tick, controller.next_wake
        alarms = [time for time in (tick, wake) if time is not None]
        time, item = self.clock.wait(min(alarms, default=None))
        if item is not None:
            event = item(time)
        elif wake is not None and wake <= time:  # a launch before the tick of the same time
            event = Wake(time)
        else:
            event = Tick(time)
        if self._observe is not None:
            self._observe(event)
        outputs = controller.handle(event)
        self.horizon = controller.horizon
        if isinstance(item, _Asked):
            self._remember(item.ticket, outputs)
        for output in outputs:
            # That of an identical update carries the version it is identical to, which has its own ticket.
            if isinstance(output, Settled) and output.record.outcome != "identical":
                ticket = self._tickets.pop(output.record.version, None)
                if ticket is not None:
                    ticket.set_result(output.record)
            self._perform(output)

    def _post(self, item: _Asked) -> None:
        with self._lock:
            if self._over:
                raise UsageError("update: expected an open stream, got a closed one")
            self._queued.add(item.ticket)
            self.clock.post(item)

    def _remember(self, ticket: Future[UpdateRecord], outputs: list[Output]) -> None:
        with self._lock:
            self._queued.discard(ticket)
        identical = [o for o in outputs if isinstance(o, Settled) and o.record.outcome == "identical"]
        if identical:
            ticket.set_result(identical[0].record)
        else:
            self._tickets[self.controller.version] = ticket


class _Asked:
    """An update on its way, with what waits for its record."""

    def __init__(self, condition: Any, ticket: Future[UpdateRecord]) -> None:
        self._condition = condition
        self.ticket = ticket

    def __call__(self, time: int) -> Update:
        return Update(time, self._condition)
