"""Random events for a controller: updates, stale and duplicate callbacks, failures, clock jumps.

`World` checks every output; this module only thinks of things to happen.
"""

from __future__ import annotations

from fractions import Fraction

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)
from support.stream_world import World

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import (
    FALLBACKS,
    BoundaryImage,
    CleanPrefill,
    Controller,
    Keyframes,
    LatentInput,
    QuantileEstimator,
    RetainedPrefix,
    Settings,
)
from wavecore.control.speculative import events as ev

ADAPTERS = st.one_of(
    st.builds(RetainedPrefix, st.integers(1, 6)),
    st.builds(CleanPrefill, st.integers(1, 6)),
    st.builds(BoundaryImage, st.integers(2, 6)),
    st.builds(LatentInput, st.integers(2, 6)),
    st.builds(lambda group, more: Keyframes(group + more, group=group), st.integers(1, 3), st.integers(1, 5)),
)
WAVES = st.tuples(
    st.one_of(st.builds(RetainedPrefix, st.integers(3, 9)), st.builds(CleanPrefill, st.integers(3, 9))),
    st.integers(1, 3),
)
SECONDS = st.sampled_from([0.05, 0.1, 0.25, 0.4])
DURATIONS = st.sampled_from([Fraction(1, 4), Fraction(4, 30), Fraction(1, 16), 0.1])
PARTS = st.sampled_from([ev.LATENT, ev.CONTEXT, ev.PIXELS, ev.SNAPSHOT, ev.LATENT | ev.CONTEXT])

WHOLE = ev.COMPLETE
LACKING = [WHOLE & ~ev.SNAPSHOT, WHOLE & ~ev.CONTEXT, WHOLE & ~ev.PIXELS]
MOSTLY = st.sampled_from([WHOLE, WHOLE, WHOLE, *LACKING])


class Machine(RuleBasedStateMachine):
    """Random events against a `World`."""

    events = sequences = cuts = kept = 0

    @initialize(
        calls=st.tuples(ADAPTERS, st.none()) | WAVES,  # adapter, and positions after which a call can be cut
        duration=DURATIONS,
        firsts=st.lists(SECONDS, max_size=4),
        fallback=st.sampled_from(FALLBACKS),
        commit_lead=st.sampled_from([0.0, 0.0, 0.15, 0.6]),
        prior=st.none() | SECONDS,
        per_group=st.sampled_from([0.0, 0.02, 0.1, 0.2]),
        margin=st.sampled_from([0.0, 0.03]),
        lead=st.none() | st.sampled_from([0.0, 0.2, 2.0]),
        underrun_rate=st.none() | st.just(0.05),
        warmup=st.integers(0, 3),
    )
    def build(
        self,
        calls,
        duration,
        firsts,
        fallback,
        commit_lead,
        prior,
        per_group,
        margin,
        lead,
        underrun_rate,
        warmup,
    ):
        adapter, cut_every = calls
        chosen = Settings(
            adapter=adapter,
            group_seconds=duration,
            first_group_seconds=firsts,
            fallback=fallback,
            commit_lead=commit_lead,
            job_timeout=2.0,
            failure_limit=4,
            cut_every=cut_every,
        )
        priors = None if prior is None else [prior + per_group * m for m in range(adapter.latents)]
        estimator = QuantileEstimator(
            adapter.latents, priors, margin=margin, lead=lead, target=underrun_rate, warmup=warmup, window=4
        )
        self.world = World(Controller(chosen, estimator))
        self.now = 0
        type(self).sequences += 1

    def send(self, kind, *values):
        type(self).events += 1
        return self.world.send(kind(self.now, *values))

    @property
    def job(self):
        return self.world.controller.state.job

    def missing_groups(self):
        """Groups of the active job of which something may still come."""
        first = self.job.position
        for group in range(-self.job.kept, self.job.groups):
            content = self.world.contents.get(first + group)
            if content is not None and content.parts | ev.PIXELS * content.late != ev.COMPLETE:
                yield group

    # -- time -----------------------------------------------------------------------------

    def play(self, until):
        """Alarms as they are due, up to a time."""
        controller = self.world.controller
        for _ in range(30):
            alarms = [t for t in (controller.next_wake, controller.next_tick) if t is not None]
            if not alarms or min(alarms) > until:
                break
            self.now = max(self.now, min(alarms))
            self.send(ev.Wake if controller.next_wake == min(alarms) else ev.Tick)
        self.now = max(self.now, until)

    @rule(steps=st.integers(1, 30))
    def run(self, steps):
        """Alarms come when they are due."""
        controller = self.world.controller
        for _ in range(steps):
            alarms = [t for t in (controller.next_wake, controller.next_tick) if t is not None]
            if not alarms:
                break
            self.now = max(self.now, min(alarms))
            self.send(ev.Wake if controller.next_wake == min(alarms) else ev.Tick)

    @rule(by=st.sampled_from([1, 10, 60, 130, 400]))
    def pass_time(self, by):
        """Time passes, less than to the next alarm."""
        controller = self.world.controller
        alarms = [t for t in (controller.next_wake, controller.next_tick) if t is not None]
        self.now = max(self.now, min([self.now + by * MILLISECOND, *alarms]))

    @rule(by=st.sampled_from([20, 300, 1_500, 20_000, 10**9]), alarm=st.sampled_from([ev.Tick, ev.Wake]))
    def jump(self, by, alarm):
        """The clock jumps over alarms."""
        self.now += by * MILLISECOND
        self.send(alarm)

    @rule(alarm=st.sampled_from([ev.Tick, ev.Wake]))
    def spurious_alarm(self, alarm):
        self.send(alarm)

    @rule(by=st.integers(1, 5 * SECOND), kind=st.sampled_from([ev.Tick, ev.Wake]))
    def clock_goes_back(self, by, kind):
        self.world.send(kind(self.now - by))
        type(self).events += 1

    # -- updates --------------------------------------------------------------------------

    @rule(condition=st.sampled_from("ABC"), times=st.sampled_from([1, 1, 1, 3]))
    def update(self, condition, times):
        for index in range(times):
            self.send(ev.Update, condition if index == times - 1 else f"{condition}{index}")

    # -- the worker -----------------------------------------------------------------------

    @precondition(lambda self: self.job is not None)
    @rule(groups=st.integers(1, 8), parts=MOSTLY)
    def make_groups(self, groups, parts):
        """Groups in order, whole or with something missing."""
        if self.job is None:
            return
        number = self.job.number
        for group in list(self.missing_groups())[:groups]:
            self.send(ev.Ready, number, group, parts)

    @precondition(lambda self: self.job is not None and self.world.settings.cut_every is not None)
    @rule(
        by=st.sampled_from([0, 40, 100, 250]),
        groups=st.integers(0, 5),
        condition=st.sampled_from("ABCDE"),
        parts=MOSTLY,
    )
    def update_a_wave(self, by, groups, condition, parts):
        """A new condition finds a call that can be cut in the middle of its work."""
        self.play(self.now + by * MILLISECOND)
        self.make_groups(groups, parts)
        self.send(ev.Update, condition)

    @precondition(lambda self: self.job is None and self.world.settings.cut_every is not None)
    @rule(by=st.sampled_from([300, 700, 1_500]), condition=st.sampled_from("ABCDE"))
    def update_a_late_wave(self, by, condition):
        """A call begins too late for its first groups, and a new condition finds it at its beginning."""
        self.now += by * MILLISECOND
        self.send(ev.Tick)
        if self.job is not None:
            self.send(ev.Update, condition)

    @precondition(lambda self: self.job is not None)
    @rule(group=st.integers(-3, 7), parts=PARTS)
    def make_a_part(self, group, parts):
        """Parts of any group, in any order, also twice, also of no group of the job."""
        self.send(ev.Ready, self.job.number, group, parts)

    def end_with(self, parts):
        """The active job adds `parts` to every group, then ends."""
        number = self.job.number
        for group in list(self.missing_groups()):
            self.send(ev.Ready, number, group, parts)
        self.send(ev.Finish, number)

    @precondition(lambda self: self.job is not None)
    @rule()
    def finish(self):
        """A job as it should be: everything, then the end."""
        self.end_with(WHOLE)

    @precondition(lambda self: self.job is not None)
    @rule(parts=st.sampled_from(LACKING))
    def finish_without_a_part(self, parts):
        """A job that ends as it should, but has left one part out of every group.

        The other rules seldom meet on it, and what comes next shows whether that part was waited for.
        """
        self.end_with(parts)

    @precondition(lambda self: self.job is not None)
    @rule(kind=st.sampled_from([ev.Finish, ev.Failed, ev.Cancelled]))
    def end_early(self, kind):
        self.send(kind, self.job.number)

    @precondition(lambda self: self.job is not None)
    @rule(
        distance=st.sampled_from([-3, -1, 1]),
        kind=st.sampled_from([ev.Ready, ev.Finish, ev.Failed, ev.Cancelled]),
        group=st.integers(0, 5),
    )
    def stale_callback(self, distance, kind, group):
        self.send(kind, self.job.number + distance, *([group] if kind is ev.Ready else []))

    # -- the end --------------------------------------------------------------------------

    @precondition(lambda self: self.world.events > 60)
    @rule(really=st.integers(0, 30))
    def close(self, really):
        if really == 0:
            self.send(ev.Close)

    def teardown(self):
        if hasattr(self, "world"):
            type(self).cuts += self.world.kinds["cut"]
            type(self).kept += self.world.kinds["kept"]
            self.send(ev.Close)
            self.send(ev.Update, "after close")


def check(examples, steps, **more):
    """Run sequences of random events until one breaks an invariant."""
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples,
            stateful_step_count=steps,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            **more,
        ),
    )
