"""SLO-aware batching on a simulated device: largest feasible batch, re-convergence, deadlines, admission."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.streaming import BatchingController, BatchingSettings, CostModel
from wavecore.control.streaming.simulation import simulate
from wavecore.errors import UsageError


@dataclass
class Device:
    """L(T, B) = (a B T + P) / BW, in seconds; the bandwidth may change at a time."""

    activations: float
    parameters: float
    change: tuple[int, float] = (10**18, 1.0)
    jitter: float = 0.0
    random: random.Random = field(default_factory=lambda: random.Random(0))

    def exact(self, now, frames):
        bandwidth = self.change[1] if now >= self.change[0] else 1.0
        return (self.activations * frames + self.parameters) / bandwidth

    def __call__(self, now, frames):
        return self.exact(now, frames) * (1 + self.jitter * self.random.uniform(-1, 1))


def largest(device, controller, entry):
    """B by brute force, with the device's true times."""
    passes, length = controller.settings.passes, entry.length
    rows = sorted((row for row in entry.waiting if len(row) >= length), key=lambda row: row[0])
    for batch in range(min(len(rows), controller.settings.max_batch), 0, -1):
        one = device.exact(entry.start, length * batch * passes) * SECOND
        alone = device.exact(entry.start, length * passes) * SECOND
        left = [row[length:] for row in rows[:batch]] + rows[batch:]
        served = all(row[0] >= entry.start + round(passes * one) for row in rows[:batch])
        after = entry.start + round(one) + round(passes * alone)
        if served and all(row[0] >= after for row in left if len(row) >= length):
            return batch
    return 0


def run(device, controller, streams, rate, slo, seconds):
    """Streams of one rate, shifted against each other; (time, B, largest feasible B, late) of each pass."""
    period = round(SECOND / rate)
    arrivals = [
        range(stream * period // streams, round(seconds * SECOND), period) for stream in range(streams)
    ]
    passes = simulate(controller, arrivals, slo, device)
    assert sum(entry.batch * entry.length for entry in passes) == sum(map(len, arrivals))
    return [(e.start, e.batch, largest(device, controller, e), e.late) for e in passes]


def test_the_largest_feasible_batch_is_chosen_and_no_deadline_missed():
    device = Device(activations=0.004, parameters=0.06)
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=8))
    log = run(device, controller, streams=8, rate=4.0, slo=0.3, seconds=60)
    assert len(log) > 300
    assert all(chosen == best for _, chosen, best, _ in log[3:])
    assert sum(misses for *_, misses in log) == 0
    assert max(chosen for _, chosen, _, _ in log) >= 3


@pytest.mark.parametrize("after", [0.5, 3.0])
def test_a_step_of_the_bandwidth_is_followed_within_five_decisions(after):
    device = Device(activations=0.01, parameters=0.05, change=(30 * SECOND, after))
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=6))
    log = run(device, controller, 6, 1.5, 0.8, 60)
    first = next(index for index, entry in enumerate(log) if entry[0] >= 30 * SECOND)
    assert all(chosen == best for _, chosen, best, _ in log[first + 5 :])
    assert len(log) > first + 20
    late = [index - first for index, (*_, misses) in enumerate(log) if misses]
    assert all(0 <= index < 5 for index in late), "only what was begun before the change was known"


@given(
    st.floats(0.001, 0.01),
    st.floats(0.0, 0.03),
    st.integers(1, 6),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 9),
)
def test_no_deadline_is_missed_where_a_setting_is_feasible(activations, parameters, streams, passes, seed):
    device = Device(activations, parameters, jitter=0.0, random=random.Random(seed))
    rate = 2.0
    full = passes * streams * activations + parameters
    utilisation = full * rate
    slo = 2.5 * passes * full + 0.05
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=8, passes=passes))
    log = run(device, controller, streams, rate, slo, 20)
    if utilisation < 0.8:
        assert sum(misses for *_, misses in log) == 0


def test_a_noisy_device_is_given_room():
    device = Device(activations=0.01, parameters=0.05, jitter=0.1)
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=6, headroom=0.05))
    log = run(device, controller, streams=6, rate=3.0, slo=0.5, seconds=120)
    assert sum(misses for *_, misses in log[5:]) == 0


def controller_that_knows(activations, parameters, **settings):
    controller = BatchingController(BatchingSettings(**settings))
    passes = controller.settings.passes
    for frames in (1, 2, 3):
        controller.cost.observe(frames * passes, activations * frames * passes + parameters)
    return controller


def test_longer_chunks_are_taken_when_shorter_ones_do_not_keep_up_and_given_up_slowly():
    controller = controller_that_knows(0.01, 0.3, lengths=(1, 2, 3), patience=4)
    waiting = [[10 * SECOND] * 6]
    lengths = [controller.decide(0, waiting, rate).length for rate in (2.0, 4.0, 4.0, 8.0)]
    assert lengths == [1, 2, 2, 3]
    slower = [controller.decide(0, waiting, 2.0).length for _ in range(5)]
    assert slower == [3, 3, 3, 1, 1]


def test_a_load_between_two_lengths_does_not_swing():
    controller = controller_that_knows(0.0, 0.5, lengths=(1, 2), patience=3)
    waiting = [[10 * SECOND] * 6]
    assert controller.decide(0, waiting, 2.01).length == 2
    swinging = {controller.decide(0, waiting, rate).length for rate in [1.99, 2.01] * 10}
    assert swinging == {2}


def test_what_has_arrived_bounds_the_length_and_nothing_is_waited_for():
    controller = controller_that_knows(0.01, 0.3, lengths=(1, 2, 3))
    assert controller.decide(0, [[10 * SECOND]], 100.0).length == 1
    assert controller.decide(0, [[], []], 100.0) is None


def test_the_first_pass_is_the_smallest_since_nothing_is_known():
    decision = BatchingController().decide(0, [[SECOND] * 3, [SECOND // 2] * 3], 4.0)
    assert (decision.length, decision.streams) == (1, (1,)), "the earliest deadline"


def test_over_the_limit_the_largest_batch_runs_and_what_is_lost_is_counted():
    controller = controller_that_knows(0.0, 0.5, lengths=(1,), max_batch=2)
    deadlines = [100 * MILLISECOND, 400 * MILLISECOND, 700 * MILLISECOND]
    assert controller.hopeless(0, deadlines) == 2
    decision = controller.decide(0, [deadlines, deadlines], 20.0)
    assert not decision.in_time and decision.batch == 2


def test_streams_are_admitted_while_the_device_keeps_up_and_the_objective_holds():
    controller = BatchingController(BatchingSettings(lengths=(1, 2)))
    assert controller.admits(1, 4.0, 0.5), "the first stream, before anything is known"
    assert not controller.admits(2, 4.0, 0.5), "nothing is known yet"
    known = controller_that_knows(0.02, 0.05, lengths=(1, 2), max_batch=8)
    admitted = [streams for streams in range(1, 12) if known.admits(streams, 4.0, 0.5)]
    assert admitted == [1, 2, 3, 4, 5, 6, 7, 8]
    assert not known.admits(8, 4.0, 0.3), "the objective"
    assert not known.admits(8, 40.0, 0.5), "the rate"


def test_wrong_settings_are_named():
    for wrong in ({"lengths": ()}, {"lengths": (2, 1)}, {"max_batch": 0}, {"passes": 0}, {"headroom": -1}):
        with pytest.raises(UsageError, match=f"^{next(iter(wrong))}: expected"):
            BatchingSettings(**wrong)


def test_the_cost_model_is_exact_after_two_sizes_and_safe_before():
    model = CostModel()
    with pytest.raises(UsageError, match="observation"):
        model.predict(1)
    model.observe(2, 0.07)
    assert model.predict(4) >= 0.09, "never below a machine that reads parameters once a pass"
    model.observe(4, 0.09)
    assert [model.predict(x) for x in (1, 8)] == pytest.approx([0.06, 0.13])
    for wrong in ((0, 1), (1, 0), (1, float("inf"))):
        with pytest.raises(UsageError, match="observe"):
            model.observe(*wrong)


def test_the_cost_model_stays_sensible_on_noise():
    generator, model = random.Random(1), CostModel()
    for _ in range(300):
        frames = generator.choice((1, 2, 4))
        model.observe(frames, 0.05 * generator.uniform(0.8, 1.25))
        assert all(0 < model.predict(x) < 1 for x in (1, 2, 4, 8))
