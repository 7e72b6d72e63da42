"""A live stream in virtual time: ages, drops, deadlines, stalls, overload for ten minutes."""

from __future__ import annotations

import pytest

from wavecore.control.clock import SECOND, VirtualClock
from wavecore.control.streaming import Inbox
from wavecore.control.streaming.intake import Intake, IntakeSettings
from wavecore.errors import UsageError

CHUNK = 4


class Simulation:
    """A source, an inbox, and a device that takes `seconds(rows)` for a round; `lag` ranks in a ring."""

    def __init__(self, fps, seconds, passes, lag=1, slo=1.0, capacity=64, stalls=(), lengths=(1,)):
        self.clock, self.inbox = VirtualClock(), Inbox(capacity)
        self.intake = Intake(IntakeSettings(slo=slo, passes=passes, lengths=lengths))
        self.seconds, self.passes, self.lag = seconds, passes, lag
        self.period, self.stalls = SECOND / fps, stalls
        self.ages, self.queued, self.waits, self.emitted, self.chosen = [], [], 0, [], []

    def run(self, until):
        arrivals, count = self._arrivals(until), 0
        self.clock.post("next", 0)
        following = next(arrivals, None)
        rows, entered, round = [], 0, 0  # (round in which it entered, frames) of each chunk at work
        over = False
        while not (over and not rows and not len(self.inbox)):
            now = self.clock.now()
            while following is not None and following <= now:
                self.inbox.put(count, following)
                self.intake.arrived(following)
                count += 1
                following = next(arrivals, None)
            over = following is None
            self.queued.append(len(self.inbox))
            needed = CHUNK if entered else 1
            lengths = self.intake.settings.lengths if entered else (1,)
            step = self.intake.decide(now, self.inbox, needed, len(rows), over, lengths)
            if step == "wait":
                self.waits += 1
                stall = now + round_up(self.intake.settings.stall_seconds)
                self.clock.wait(stall if following is None else min(stall, max(following, now + 1)))
                continue
            if step == "enter" and len(self.inbox):
                self.chosen.append((now / SECOND, self.intake.length))
                rows.append((round, self.inbox.take(needed * self.intake.length)))
                entered += 1
            working = sum(-(-len(row[1]) // CHUNK) for row in rows if (round - row[0]) % self.lag == 0)
            took = self.seconds(max(1, working))
            self.clock.wait(now + int(took * SECOND))
            self.intake.observe(max(1, working), took)
            done = [row for row in rows if round - row[0] == (self.passes - 1) * self.lag]
            for row in done:
                rows.remove(row)
                for arrival in row[1]:
                    self.ages.append((self.clock.now() - arrival.time) / SECOND)
                    self.emitted.append(arrival.index)
            round += 1
        self.arrived = count
        return self

    def _arrivals(self, until):
        index = 0
        while index * self.period / SECOND < until:
            at = index * self.period / SECOND
            if not any(start <= at < end for start, end in self.stalls):
                yield int(index * self.period)
            index += 1


def round_up(seconds):
    return int(seconds * SECOND) + 1


@pytest.mark.parametrize(("passes", "lag"), [(1, 1), (2, 1), (4, 1), (2, 4)])
def test_ten_minutes_of_overload_bound_age_and_queue_and_count_drops(passes, lag):
    """30 frames a second arrive; a chunk of 4 takes 0.4 s at full batch, which makes 10."""
    simulation = Simulation(30, lambda rows: 0.4, passes, lag).run(600)
    chunk = 0.4
    settled = simulation.ages[100:]
    assert max(settled) <= (passes * lag + 2) * chunk
    assert max(simulation.queued) <= 16
    assert simulation.inbox.dropped + len(simulation.emitted) == simulation.arrived
    assert len(simulation.emitted) == pytest.approx(6000, rel=0.02)
    assert simulation.emitted == sorted(set(simulation.emitted))


def test_longer_chunks_keep_up_where_short_ones_do_not():
    """A pass reads parameters for 0.3 s: four frames a pass make 12 a second, twelve make 29."""

    def seconds(rows):
        return 0.3 + 0.03 * rows

    fixed = Simulation(16, seconds, 1, slo=2.0).run(120)
    free = Simulation(16, seconds, 1, slo=2.0, lengths=(1, 2, 3)).run(120)
    assert fixed.inbox.dropped > 400 and free.inbox.dropped == 0
    assert max(free.ages) < 2.0, "no frame is late"
    assert {length for _, length in free.chosen} >= {1, 2}


def test_the_length_follows_a_step_of_the_load_and_goes_back():
    """The device is three times slower from 30 s to 60 s."""
    slow = [1.0]
    simulation = Simulation(16, lambda rows: slow[0] * (0.1 + 0.02 * rows), 1, slo=2.0, lengths=(1, 2, 3))
    decide = simulation.intake.decide

    def at(now, *arguments):
        slow[0] = 3.0 if 30 <= now / SECOND < 60 else 1.0
        return decide(now, *arguments)

    simulation.intake.decide = at
    simulation.run(90)
    assert simulation.inbox.dropped == 0 and max(simulation.ages) < 2.0
    during = [length for time, length in simulation.chosen if 32 <= time < 60]
    around = [length for time, length in simulation.chosen if 1 <= time < 30 or time >= 65]
    assert set(around) == {1}, "the least delay where short chunks keep up"
    assert max(during) >= 2 and sum(during) / len(during) > 1.2


def test_a_chunk_is_no_longer_than_what_has_arrived_and_its_deadline_allow():
    def length(seconds, lengths=(1, 2, 3), frames=12):
        intake, inbox = Intake(IntakeSettings(slo=1.0, lengths=(1, 2, 3))), Inbox(64)
        for index in range(frames):
            inbox.put(index, index * SECOND // 16)
            intake.arrived(index * SECOND // 16)
        intake.observe(1, seconds)
        intake.observe(3, 3 * seconds)
        assert intake.decide(12 * SECOND // 16, inbox, CHUNK, 0, False, lengths) == "enter"
        return intake.length

    assert length(0.01) == 3, "all that waits, if nothing is late"
    assert length(0.1) == 2, "the first frame is due in 0.25 s"
    assert length(0.01, frames=9) == 2
    assert length(0.01, lengths=(1,)) == 1


@pytest.mark.parametrize("passes", [1, 2, 4])
def test_a_fast_device_drops_nothing_and_keeps_the_delay_to_one_chunk(passes):
    simulation = Simulation(16, lambda rows: 0.01 + 0.005 * rows, passes).run(60)
    assert simulation.inbox.dropped == 0
    assert simulation.emitted == list(range(simulation.arrived))
    assert max(simulation.ages) < 0.25 + passes * 0.02 + 0.02, "a chunk's frames, then all levels at once"
    assert simulation.ages[0] < passes * 0.02 + 0.01, "the first frame waits for nothing"


def test_a_device_that_needs_the_batch_gets_it():
    """Two passes of one row take 0.3 s, more than the 0.25 s of a chunk; one of two rows takes 0.2 s."""
    simulation = Simulation(16, lambda rows: 0.1 + 0.05 * rows, 2).run(60)
    assert simulation.inbox.dropped == 0
    assert simulation.waits > 100
    assert max(simulation.ages[50:]) <= 2 * 0.25 + 0.25 + 0.2 + 0.05


def test_a_stall_lets_what_is_at_work_go_on():
    simulation = Simulation(16, lambda rows: 0.1 + 0.05 * rows, 2, stalls=[(10, 15)]).run(20)
    assert simulation.inbox.dropped == 0
    late = [age for age in simulation.ages if age > 2.0]
    assert len(late) <= 3, "frames that wait for the rest of their chunk"
    assert len(simulation.emitted) == simulation.arrived


def test_one_frame_is_enough():
    simulation = Simulation(16, lambda rows: 0.05, 4).run(0.05)
    assert simulation.emitted == [0]


def test_wrong_settings_are_named():
    for wrong in ({"slo": 0}, {"passes": 0}, {"stall_seconds": -1}):
        with pytest.raises(UsageError, match=next(iter(wrong))):
            IntakeSettings(**wrong)
