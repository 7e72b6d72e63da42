"""A controller with times in seconds, and every output of it checked."""

from __future__ import annotations

from support.stream_world import World

from wavecore.control.clock import SECOND
from wavecore.control.speculative import Controller, QuantileEstimator, RetainedPrefix, Settings
from wavecore.control.speculative import events as ev


class Stream:
    """Unless said otherwise K = 4 latents of 1 s each, and a call takes 1 s to all of its groups."""

    def __init__(self, adapter=None, seconds=1.0, margin=0.0, lead=None, estimator=None, **settings):
        adapter = RetainedPrefix(4) if adapter is None else adapter
        estimator = estimator or QuantileEstimator(
            adapter.latents, [seconds] * adapter.latents, warmup=0, margin=margin, lead=lead
        )
        chosen = Settings(adapter=adapter, group_seconds=1.0, **settings)
        self.controller = Controller(chosen, estimator)
        self.world = World(self.controller)

    def send(self, kind, time, *values):
        return self.world.send(kind(round(time * SECOND), *values))

    def begin(self):
        """Bootstrap under "A" in no time, so that position j is due at j seconds."""
        self.send(ev.Update, 0, "A")
        for group in reversed(range(self.job.groups)):
            self.send(ev.Ready, 0, 0, group)
        self.send(ev.Finish, 0, 0)
        return self

    @property
    def job(self):
        return self.controller.state.job

    def make(self, time, groups=None):
        """The active job makes `groups` groups, or all and ends; before, playback goes on up to then."""
        self.play(time - 1e-9)
        job = self.job
        outputs = []
        for group in range(job.groups if groups is None else groups):
            outputs += self.send(ev.Ready, time, job.number, group)
        return outputs + (self.send(ev.Finish, time, job.number) if groups is None else [])

    def play(self, until):
        """Alarms as they are due, up to and with `until`."""
        outputs = []
        while True:
            alarms = [t for t in (self.controller.next_wake, self.controller.next_tick) if t is not None]
            if not alarms or min(alarms) > until * SECOND:
                return outputs
            time = min(alarms)
            kind = ev.Wake if self.controller.next_wake == time else ev.Tick
            outputs += self.world.send(kind(time))


def only(outputs, kind):
    return [output for output in outputs if isinstance(output, kind)]


def one(outputs, kind):
    (output,) = only(outputs, kind)
    return output
