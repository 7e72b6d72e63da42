"""The SLO-aware batching controller on a simulated device, in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from wavecore.control.clock import SECOND, VirtualClock
from wavecore.control.streaming.batching import BatchingController


@dataclass(frozen=True)
class Pass:
    """One pass of the device.

    Attributes
    ----------
    start : int
        Nanoseconds.
    length, batch : int
        T and B that the controller chose.
    seconds : float
        What the pass took.
    waiting : tuple of tuple of int
        Deadlines of the latent frames that waited for it, by stream.
    late : int
        Of its latent frames, those that were complete after their deadline.
    """

    start: int
    length: int
    batch: int
    seconds: float
    waiting: tuple[tuple[int, ...], ...]
    late: int


def simulate(
    controller: BatchingController,
    arrivals: Sequence[Sequence[int]],
    slo: float,
    device: Callable[[int, int], float],
) -> list[Pass]:
    """Run streams through one device until every frame is served.

    Parameters
    ----------
    controller : BatchingController
    arrivals : sequence [streams] of sequence of int
        When each latent frame of each stream arrives, in nanoseconds, rising.
    slo : float
        Seconds from arrival to completion.
    device : callable (nanoseconds, latent frames) -> seconds
        Time of a pass that begins then over so many latent frames, all noise levels counted.

    Returns
    -------
    list of Pass
    """
    clock: VirtualClock[int] = VirtualClock()
    for stream, times in enumerate(arrivals):
        for at in times:
            clock.post(stream, at)
    waiting: list[list[int]] = [[] for _ in arrivals]
    left, free_at = sum(map(len, arrivals)), 0
    passes: list[Pass] = []
    recent: list[int] = []
    while left or any(waiting):
        now, arrived = clock.wait(free_at if free_at > clock.now() or not left else None)
        while arrived is not None:  # everything that is there by now
            waiting[arrived].append(now + round(slo * SECOND))
            recent.append(now)
            left -= 1
            now, arrived = clock.wait(now)
        if now < free_at:
            continue
        recent = [at for at in recent if at > now - SECOND]
        decision = controller.decide(now, waiting, max(1, len(recent)) / min(1.0, max(now, 1) / SECOND + 0.1))
        if decision is None:
            continue
        seconds = device(now, decision.length * decision.batch * controller.settings.passes)
        done = now + round(controller.settings.passes * seconds * SECOND)
        before = tuple(tuple(row) for row in waiting)
        taken = [waiting[index][: decision.length] for index in decision.streams]
        for index in decision.streams:
            del waiting[index][: decision.length]
        controller.observe(decision.length, decision.batch, seconds)
        late = sum(deadline < done for row in taken for deadline in row)
        passes.append(Pass(now, decision.length, decision.batch, seconds, before, late))
        free_at = now + round(seconds * SECOND)
    return passes
