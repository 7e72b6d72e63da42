"""Whether sessions had better run their rounds together: measured, since it depends on model and device.

A forward of several rounds reads the weights once, which pays where one forward leaves the device idle or
waiting for memory. On a processor, forwards of their own can be faster: each has a core.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from wavecore.control.streaming import BatchingController, BatchingSettings
from wavecore.interactive.causal import CausalGenerator
from wavecore.interactive.speculation import call_rules
from wavecore.placement.calls import shared_place
from wavecore.placement.device import SharedDevice

if TYPE_CHECKING:
    from wavecore.pipeline import Pipeline

_MOST = 4  # calls at once that are measured
_CALLS = 2  # of each stream, behind a first one that has no context
_PROMPT = "a red ball"


def make_device(pipe: Pipeline, sessions: int, objective: float) -> SharedDevice:
    """Make a device for so many sessions, whose rounds are to take no longer than `objective` seconds."""
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=sessions))
    return SharedDevice(pipe.model.dit, controller, objective, 0)


def time_calls(
    pipe: Pipeline, sessions: int, latents: int, steps: int, shared: SharedDevice | None, calls: int = _CALLS
) -> list[float]:
    """Seconds that a call of each of several streams takes, all at once.

    Parameters
    ----------
    pipe : Pipeline
    sessions : int
        Streams, each in a thread of its own.
    latents : int
        Of a call.
    steps : int
    shared : SharedDevice or None
        Runs their rounds together; each runs its own when None.
    calls : int
        Measured, of each stream.
    """
    rules, levels = call_rules(pipe.rules(None, steps)), pipe.levels(steps)
    place = None if shared is None else shared_place(shared).open
    generators = [
        CausalGenerator(pipe.model, rules, levels, seed, pipe.size, latents, place=place)
        for seed in range(sessions)
    ]

    def call(generator: CausalGenerator, position: int) -> None:
        for _ in generator.call(position, latents, 0, _PROMPT):
            pass
        generator.release(position + latents)

    times = []
    for number in range(calls + 1):
        began = time.monotonic()
        threads = [
            threading.Thread(target=call, args=(generator, number * latents)) for generator in generators
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        times.append(time.monotonic() - began)
    for generator in generators:
        generator.close()
    return times[1:]


def device_if_faster(
    pipe: Pipeline, sessions: int, latents: int, steps: int, objective: float
) -> SharedDevice | None:
    """A device for so many sessions where common forwards are faster than their own; parameters as above."""
    device = make_device(pipe, sessions, objective)
    streams = min(sessions, _MOST)
    own, common = (min(time_calls(pipe, streams, latents, steps, each)) for each in (None, device))
    if common < own:
        return device
    device.close()
    return None
