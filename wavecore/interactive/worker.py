"""Carries out the launches of a controller and reports back through its clock."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Any, Protocol

from wavecore.control.clock import Clock, nanoseconds
from wavecore.control.speculative import Adapter, UnitCosts
from wavecore.control.speculative.events import (
    Cancel,
    Cancelled,
    Event,
    Failed,
    Finish,
    Launch,
    Output,
    Ready,
    Restore,
    Shelve,
)
from wavecore.control.speculative.runner import Item
from wavecore.interactive.predictions import Generator, Made


class Branches:
    """What a generator does around each call: cuts, keeps the shelf, restores, releases.

    Parameters
    ----------
    generator : Generator
    """

    def __init__(self, generator: Generator) -> None:
        self.generator = generator
        self.committed = 0  # positions before it are irrevocable; written by the thread that plays
        self._shelf: Any = None

    def restore(self) -> None:
        """Put back what the latest call replaced."""
        if self._shelf is not None:
            self.generator.restore(self._shelf)
            self._shelf = None

    def begin(self, launch: Launch, keep: bool) -> None:
        """Cut the suffix that a call replaces; with `keep` it can be restored until the next call."""
        if self._shelf is not None:
            self.generator.discard(self._shelf)
        self.generator.release(min(self.committed, launch.position))
        shelf = self.generator.cut(launch.position)
        self._shelf = shelf if keep else None
        if not keep:
            self.generator.discard(shelf)


class Worker(Protocol):
    """What a session needs of a worker."""

    branches: Branches

    def perform(self, output: Output) -> None:
        """Act on an output of the controller, without blocking."""

    def close(self) -> None:
        """End what is under way and give up memory."""


class _Commands:
    """Turns outputs into commands, in order. `Shelve` precedes the launch that it is about."""

    def __init__(self, generator: Generator) -> None:
        self.branches = Branches(generator)
        self._keep = False
        self._told_to_end = -1

    def perform(self, output: Output) -> None:
        """See `Worker.perform`."""
        if isinstance(output, Launch):
            self._order(partial(self._run, output, self._keep))
            self._keep = False
        elif isinstance(output, Shelve):
            self._keep = True
        elif isinstance(output, Restore):
            self._order(self.branches.restore)
        elif isinstance(output, Cancel):
            self._told_to_end = output.job

    def _order(self, command: Callable[[], None]) -> None:
        raise NotImplementedError

    def _run(self, launch: Launch, keep: bool) -> None:
        raise NotImplementedError

    def _calls(self, launch: Launch, keep: bool, report: Callable[[Callable[[int], Event]], None]) -> None:
        """Make a call and report every step of it and its end."""
        job = launch.job
        try:
            self.branches.begin(launch, keep)
            made = self.branches.generator.call(
                launch.position, launch.groups, launch.trimmed, str(launch.condition)
            )
            with closing(made):  # type: ignore[type-var]
                for group, parts in made:
                    report(partial(Ready, job=job, group=group, parts=parts))
                    if self._told_to_end == job:
                        report(partial(Cancelled, job=job))
                        return
        except Exception as error:  # whatever it is, the controller has to know, and the stream goes on
            report(partial(Failed, job=job, reason=f"{type(error).__name__}: {error}"))
            return
        report(partial(Finish, job=job))


class ThreadWorker(_Commands):
    """Makes calls in a thread of its own, in real time.

    Parameters
    ----------
    generator : Generator
    clock : Clock
    """

    def __init__(self, generator: Generator, clock: Clock[Item]) -> None:
        super().__init__(generator)
        self._clock = clock
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="wavecore-worker", daemon=True)
        self._thread.start()

    def _order(self, command: Callable[[], None]) -> None:
        self._commands.put(command)

    def _loop(self) -> None:
        while (command := self._commands.get()) is not None:
            command()
        self.branches.generator.close()

    def _run(self, launch: Launch, keep: bool) -> None:
        self._calls(launch, keep, self._clock.post)

    def close(self) -> None:
        """End what is under way, wait for it and give up memory."""
        self._commands.put(None)
        self._thread.join()


class VirtualWorker(_Commands):
    """Makes calls at once and reports them after the time they took, or after what a cost model says.

    Parameters
    ----------
    generator : Generator
    clock : Clock
        Virtual.
    adapter : Adapter
    costs : UnitCosts, optional
        Of a simulated machine; the time is measured when left out.
    """

    def __init__(
        self,
        generator: Generator,
        clock: Clock[Item],
        adapter: Adapter,
        costs: UnitCosts | None = None,
    ) -> None:
        super().__init__(generator)
        self._clock, self._adapter, self._costs = clock, adapter, costs

    def perform(self, output: Output) -> None:
        """See `Worker.perform`; calls are made at once, so their end can be confirmed at once."""
        super().perform(output)
        if isinstance(output, Cancel):
            self._clock.post(partial(Cancelled, job=output.job))

    def _order(self, command: Callable[[], None]) -> None:
        command()

    def _run(self, launch: Launch, keep: bool) -> None:
        start = time.perf_counter_ns()

        def report(item: Callable[[int], Event]) -> None:
            after = time.perf_counter_ns() - start
            if self._costs is not None:
                after = self._cost(launch, item)
            self._clock.post(item, after)

        self._calls(launch, keep, report)

    def _cost(self, launch: Launch, item: Callable[[int], Event]) -> int:
        assert self._costs is not None
        retained = self._adapter.latents if launch.position else 0
        cost = self._adapter.cost(self._costs, launch.position, retained)
        event = item(0)
        return nanoseconds(cost.ready[event.group] if isinstance(event, Ready) else cost.finish)

    def close(self) -> None:
        """Give up memory."""
        self.branches.generator.close()


class RecordedWorker(_Commands):
    """Makes calls again as far as a log says they came, and reports nothing: the log has the reports.

    Parameters
    ----------
    generator : Generator
    steps : dict of int by job
        Reports that each job made before it ended.
    """

    def __init__(self, generator: Generator, steps: dict[int, int]) -> None:
        super().__init__(generator)
        self._steps = steps

    def _order(self, command: Callable[[], None]) -> None:
        command()

    def _run(self, launch: Launch, keep: bool) -> None:
        self.branches.begin(launch, keep)
        made = self.branches.generator.call(
            launch.position, launch.groups, launch.trimmed, str(launch.condition)
        )
        with closing(made):  # type: ignore[type-var]
            for _ in range(self._steps.get(launch.job, 0)):
                if not isinstance(next(made, None), Made):
                    return

    def close(self) -> None:
        """Give up memory."""
        self.branches.generator.close()
