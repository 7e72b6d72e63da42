"""Carries out the launches of a controller and reports back through its clock."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from functools import partial
from typing import NamedTuple, Protocol

from wavecore.control.clock import Clock, nanoseconds
from wavecore.control.speculative import Adapter, UnitCosts
from wavecore.control.speculative.events import (
    Cancel,
    Cancelled,
    Event,
    Failed,
    Finish,
    JobEnd,
    Launch,
    Output,
    Ready,
    Restore,
    Shelve,
    Wake,
)
from wavecore.control.speculative.runner import Item
from wavecore.errors import WavecoreError
from wavecore.interactive.branches import Branches
from wavecore.interactive.predictions import Generator, Made


class Worker(Protocol):
    """What a session needs of a worker."""

    branches: Branches

    def perform(self, output: Output) -> None:
        """Act on an output of the controller, without blocking."""

    def close(self) -> bool:
        """End what is under way and give up memory; False where a call does not end."""


class Stopped(NamedTuple):
    """A call that did not run to its end.

    Attributes
    ----------
    job : int
    steps : int
        Made since its launch.
    by : int or None
        The job that cut it; None when it failed or was told to end.
    spliced : bool
        Whether the call goes on as that job, rather than being made anew.
    """

    job: int
    steps: int
    by: int | None = None
    spliced: bool = False


Note = Callable[[Stopped], None]


def _ignore(stopped: Stopped) -> None:
    """Nobody wants to know."""


class _Commands:
    """Turns outputs into commands, in order, and calls into reports.

    `Shelve` precedes the launch that it is about; so does the end of a job that the launch cuts.
    """

    def __init__(self, generator: Generator, note: Note = _ignore) -> None:
        self.branches = Branches(generator)
        self._note = note
        self._keep = False
        self._told_to_end = -1
        self._cut: int | None = None
        self._lock = threading.Lock()
        self._current: Launch | None = None  # ordered and not ended
        self._splice: Launch | None = None  # to take the place of the rest of it
        self._successors: dict[int, Launch] = {}

    def perform(self, output: Output) -> None:
        """See `Worker.perform`."""
        if isinstance(output, Launch):
            self._launch(output)
        elif isinstance(output, JobEnd):
            self._cut = output.job if output.outcome == "cut" else None
        elif isinstance(output, Shelve):
            self._keep = True
        elif isinstance(output, Restore):
            self._restore()
        elif isinstance(output, Cancel):
            self._told_to_end = output.job

    def _launch(self, launch: Launch) -> None:
        keep, self._keep = self._keep, False
        with self._lock:
            if self._cut is not None:
                kept = [job for job in self._successors if job > self._cut - _REMEMBERED]
                self._successors = {job: self._successors[job] for job in kept} | {self._cut: launch}
                self._cut = None
                if self._current is not None:
                    self._splice = launch
                    return
            self._current = launch
        self._order(partial(self._run, self._steps(launch, keep)))

    def _restore(self) -> None:
        self._order(self.branches.restore)

    def _order(self, command: Callable[[], None]) -> None:
        raise NotImplementedError

    def _run(self, steps: Iterator[Item | None]) -> None:
        raise NotImplementedError

    def _steps(self, launch: Launch, keep: bool) -> Iterator[Item | None]:
        """Make a call step by step; what a step has to report, and at last its end."""
        following: Launch | None = launch
        while following is not None:
            launch, following, count = following, None, 0
            try:
                self.branches.begin(launch, keep)
                made = self.branches.call(launch)
                with closing(made):  # type: ignore[type-var]
                    for position, parts in made:
                        count += 1
                        yield self._report(launch, position, parts) if parts else None
                        # Between two rounds only: within one, what is dropped may still be reported.
                        splice = None if parts else self._taken()
                        if splice is not None:
                            spliced = self.branches.splice(splice)
                            self._note(Stopped(launch.job, count, splice.job, spliced))
                            if not spliced:
                                following = splice
                                break
                            launch, count = splice, 0
                        if self._told_to_end == launch.job:
                            self._current = None
                            self._note(Stopped(launch.job, count))
                            yield partial(Cancelled, job=launch.job)
                            return
            except Exception as error:  # whatever it is, the controller has to know, and the stream goes on
                # Where another call was to take the place of the rest, it takes that of the whole.
                following = self._taken(end=True)
                self._note(Stopped(launch.job, count, None if following is None else following.job))
                if following is None:
                    yield partial(Failed, job=launch.job, reason=_reason(error))
                    return
            if following is None:
                following = self._taken(end=True)
                if following is not None:
                    self._note(Stopped(launch.job, count, following.job))
            keep = False
        yield partial(Finish, job=launch.job)

    def _taken(self, end: bool = False) -> Launch | None:
        """The launch that shall take the place of the rest of the call, if any; else it may be at its end."""
        with self._lock:
            splice, self._splice = self._splice, None
            if end and splice is None:
                self._current = None
            return splice

    def _report(self, launch: Launch, position: int, parts: int) -> Item:
        """A report under the number that its job has when it arrives, for it may be cut until then."""

        def arrive(time: int) -> Event:
            serving = launch
            while serving.job in self._successors:
                following = self._successors[serving.job]
                if position >= following.position:  # made for what was dropped
                    return Ready(time, launch.job, position - launch.position, parts)
                serving = following
            return Ready(time, serving.job, position - serving.position, parts)

        return arrive


class ThreadWorker(_Commands):
    """Makes calls in a thread of its own, in real time.

    Parameters
    ----------
    generator : Generator
    clock : Clock
    note : callable
    patience : float
        Seconds that `close` waits for a call to end.
    """

    def __init__(
        self, generator: Generator, clock: Clock[Item], note: Note = _ignore, patience: float = 60.0
    ) -> None:
        super().__init__(generator, note)
        self._clock, self._patience = clock, patience
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="wavecore-worker", daemon=True)
        self._thread.start()

    def _order(self, command: Callable[[], None]) -> None:
        self._commands.put(command)

    def _restore(self) -> None:
        """Wait for it: what is restored may be shown at once. The call has ended, so it takes no time."""
        done = threading.Event()

        def restore() -> None:
            try:
                self.branches.restore()
            finally:
                done.set()

        self._order(restore)
        done.wait()

    def _loop(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
        self.branches.generator.close()

    def _run(self, steps: Iterator[Item | None]) -> None:
        for item in steps:
            if item is not None:
                self._clock.post(item)

    def close(self) -> bool:
        """See `Worker.close`; the thread of a call that never ends is left behind, with its memory."""
        self._commands.put(None)
        self._thread.join(self._patience)
        return not self._thread.is_alive()


class VirtualWorker(_Commands):
    """Makes calls as virtual time goes on: a step takes the time it took, or what a cost model says.

    Parameters
    ----------
    generator : Generator
    clock : Clock
        Virtual.
    adapter : Adapter
    costs : UnitCosts, optional
        Of a simulated machine; the time is measured when left out.
    note : callable
    """

    def __init__(
        self,
        generator: Generator,
        clock: Clock[Item],
        adapter: Adapter,
        costs: UnitCosts | None = None,
        note: Note = _ignore,
    ) -> None:
        super().__init__(generator, note)
        self._clock, self._adapter, self._costs = clock, adapter, costs
        self._latest: Launch | None = None

    def perform(self, output: Output) -> None:
        """See `Worker.perform`; steps are made in no time, so the end of a call is confirmed at once."""
        if isinstance(output, Launch):
            self._latest = output
        super().perform(output)
        if isinstance(output, Cancel):
            self._clock.post(partial(Cancelled, job=output.job))

    def _order(self, command: Callable[[], None]) -> None:
        command()

    def _run(self, steps: Iterator[Item | None]) -> None:
        """Make the next step, and the one behind it when it has arrived."""
        start = time.perf_counter_ns()
        try:
            item = next(steps)
        except StopIteration:
            return
        delay = time.perf_counter_ns() - start if self._costs is None else self._cost(item)

        def arrive(time: int) -> Event:
            event = Wake(time) if item is None else item(time)
            if not isinstance(event, Finish | Failed | Cancelled):
                self._clock.post(partial(self._go_on, steps), rank=1)
            return event

        self._clock.post(arrive, delay)

    def _go_on(self, steps: Iterator[Item | None], time: int) -> Event:
        self._run(steps)
        return Wake(time)

    def _cost(self, item: Item | None) -> int:
        """Nanoseconds from now on; those of a report count from the launch of its job."""
        launch = self._latest
        if item is None or launch is None:
            return 0
        retained = self._adapter.latents if launch.position else 0
        cost = self._adapter.cost(self._costs, launch.position, retained)  # type: ignore[arg-type]
        event = item(0)
        if isinstance(event, Ready):
            at = cost.ready[event.group] if 0 <= event.group < len(cost.ready) else 0.0
        else:
            at = cost.finish
        return max(launch.time + nanoseconds(at) - self._clock.now(), 0)

    def close(self) -> bool:
        """Give up memory."""
        self.branches.generator.close()
        return True


class RecordedWorker(_Commands):
    """Makes calls again as far as a log says they came, and reports nothing: the log has the reports.

    Parameters
    ----------
    generator : Generator
    reports : mapping of int by job
        Reports that each job made.
    stopped : iterable of Stopped
        Calls that did not run to their end.
    """

    def __init__(self, generator: Generator, reports: Mapping[int, int], stopped: Iterable[Stopped]) -> None:
        super().__init__(generator)
        self._reports = reports
        self._stopped = {stop.job: stop for stop in stopped}
        self._by = {stop.by: stop for stop in self._stopped.values()}
        self._made: Iterator[Made] = iter(())

    def perform(self, output: Output) -> None:
        """See `Worker.perform`; a call has ended before what it replaced is restored."""
        if isinstance(output, JobEnd) and output.outcome != "cut":
            self._end()
        super().perform(output)

    def _launch(self, launch: Launch) -> None:
        stop = self._by.get(launch.job)
        if stop is None or not stop.spliced or not self.branches.splice(launch):
            self._end()
            self.branches.begin(launch, self._keep)
            self._made = self.branches.call(launch)
        self._keep = False
        if launch.job in self._stopped:
            for _ in range(self._stopped[launch.job].steps):
                next(self._made, None)
            return
        left = self._reports.get(launch.job, 0)
        while left > 0 and (made := next(self._made, None)) is not None:
            left -= made.parts != 0

    def _end(self) -> None:
        """End the call; a generator that was not begun has nothing to end."""
        close = getattr(self._made, "close", None)
        if close is not None:
            close()

    def _order(self, command: Callable[[], None]) -> None:
        command()

    def close(self) -> bool:
        """Give up memory."""
        self._end()
        self.branches.generator.close()
        return True


_REMEMBERED = 16  # jobs whose late reports may still be under way


def _reason(error: Exception) -> str:
    """What a person reads of an error; one that nobody has worded says what it is."""
    return str(error) if isinstance(error, WavecoreError) else f"{type(error).__name__}: {error}"
