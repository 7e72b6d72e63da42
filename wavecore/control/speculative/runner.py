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

_QUEUED = 64  # updates that wait to be handled


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
        self._changed = threading.Condition()
        self._taker: int | None = None  # the thread that runs
        self._closing = self._over = False

    def update(self, condition: Any) -> Future[UpdateRecord]:
        """Ask for a condition, from any thread; the first one starts the stream.

        Returns
        -------
        Future of UpdateRecord
            Resolves when the fate of the update is known; that of the first condition at the end. An update
            of a stream that has ended by itself is lost.

        Raises
        ------
        UsageError
            The stream was closed.
        """
        ticket: Future[UpdateRecord] = Future()
        if not self._post(_Asked(condition, ticket)):
            ticket.set_result(self._lost(self.controller.version))
        return ticket

    def close(self) -> None:
        """End the stream, from any thread."""
        with self._changed:
            self._closing, over = True, self._over
        if not over:
            self.clock.post(Close)

    def run(self) -> None:
        """Handle events until the controller is closed."""
        self._taker = threading.get_ident()
        try:
            while not self.controller.closed:
                self.step()
        finally:
            self._finish()

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
        if controller.closed:
            self._finish()

    def _finish(self) -> None:
        """Tell what has become of every update that nothing will be done about any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        left = [*self._tickets.items(), *((self.controller.version, ticket) for ticket in self._queued)]
        self._tickets.clear()
        self._queued.clear()
        for version, ticket in left:
            ticket.set_result(self._lost(version))

    def _lost(self, version: int) -> UpdateRecord:
        return UpdateRecord(version, self.clock.now(), outcome="lost")

    def _post(self, item: _Asked) -> bool:
        """Queue an update; False when the stream has ended by itself.

        Who asks faster than updates are handled waits: ticks stand in the same queue.
        """
        with self._changed:
            if self._taker not in (None, threading.get_ident()):
                self._changed.wait_for(lambda: self._over or len(self._queued) < _QUEUED)
            if self._over and self._closing:
                raise UsageError("update: expected an open stream, got a closed one")
            if self._over:
                return False
            self._queued.add(item.ticket)
            self.clock.post(item)
            return True

    def _remember(self, ticket: Future[UpdateRecord], outputs: list[Output]) -> None:
        with self._changed:
            self._queued.discard(ticket)
            self._changed.notify()
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
