"""Requests one after the other on stages that stay."""

import os
import signal

import numpy as np
import pytest

import wavecore
from wavecore.errors import UsageError, WavecoreError
from wavecore.launcher import Launcher, Request
from wavecore.placement.replicas import ReplicaOptions
from wavecore.trace import Trace

STEPS = 2
SIZE = (32, 32)


@pytest.fixture(scope="module")
def pipe():
    return wavecore.load("sprites")


@pytest.fixture(scope="module")
def trace():
    return Trace(limit=1_000_000)


@pytest.fixture(scope="module")
def launcher(pipe, trace):
    rules, levels = pipe.rules("wavefront", STEPS), pipe.levels(STEPS)
    options = ReplicaOptions(ranks=2, timeout=60)  # two on a machine of one core too
    with Launcher(pipe.model, rules, levels, SIZE, pipe.fps, options, trace) as launcher:
        yield launcher


def frames(ticket):
    return np.concatenate([group.frames for group in ticket])


def alone(pipe, prompt, seed, num_frames):
    with pipe.session(prompt, seed=seed, steps=STEPS, num_frames=num_frames, size=SIZE) as session:
        return np.concatenate([group.frames for group in session])


def test_twenty_requests_leave_no_idle_round_between_them(pipe, launcher, trace):
    tickets = [launcher.submit(Request(f"a red ball number {i}", 13 + 12 * (i % 3), i)) for i in range(20)]
    made = [frames(ticket) for ticket in tickets]
    assert [len(clip) for clip in made] == [13 + 12 * (i % 3) for i in range(20)]
    for i in (0, 7, 19):  # the batched forward of one device differs by rounding
        expected = alone(pipe, f"a red ball number {i}", i, 13 + 12 * (i % 3))
        assert np.abs(made[i].astype(int) - expected).max() <= 2
    rounds = [event for event in trace.events if event.kind == "round" and "0" in event.data["slots"]]
    chunks = sum(2 + i % 3 for i in range(20))
    assert len(rounds) == chunks
    assert launcher._replicas._ticks.entered <= chunks + 19, "one idle round between two at most"


def test_a_cancelled_request_makes_way(pipe, launcher):
    long = launcher.submit(Request("a blue star", 100_000))
    waiting = launcher.submit(Request("a green cross", 13))
    never = launcher.submit(Request("a white ring", 13))
    never.cancel()
    next(iter(long))
    long.cancel()
    assert len(frames(waiting)) == 13
    assert list(never) == []


def test_a_prompt_schedule_changes_the_version_of_later_groups(launcher):
    groups = list(launcher.submit(Request("a red ball", 61, prompts=[(0.8, "a blue star")])))
    versions = [group.version for group in groups]
    assert versions[0] == 0 and versions[-1] == 1 and versions == sorted(versions)


def test_a_rank_that_is_killed_fails_its_request_only(pipe, launcher):
    before = launcher.restarts
    first = launcher.submit(Request("a red ball", 100_000))
    groups = iter(first)
    next(groups)
    os.kill(launcher.pids[1], signal.SIGKILL)
    with pytest.raises(WavecoreError, match=r"rank 1 \(stages? .*\), process \d+: it was ended by SIGKILL"):
        for _ in groups:
            pass
    after = launcher.submit(Request("a green cross", 25, 3))
    expected = alone(pipe, "a green cross", 3, 25)
    assert np.abs(frames(after).astype(int) - expected).max() <= 2
    assert launcher.restarts == before + 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("", 5), "prompt"),
        (("a ball", 0), "num_frames: expected a whole number of at least 1, got 0"),
        (("a ball", 2.5), "num_frames: expected a whole number of at least 1, got 2.5"),
        (("a ball", "a"), "num_frames: expected a whole number of at least 1, got 'a'"),
        (("a ball", 5, -1), "seed: expected a whole number of at least 0 and at most 9223372036854775807"),
        (("a ball", 5, 0, [("a", "a star")]), "prompts: expected times of at least 0 seconds, got 'a'"),
        (("a ball", 5, 0, [(-1, "a star")]), "prompts: expected times of at least 0 seconds, got -1"),
    ],
)
def test_requests_that_cannot_be(arguments, message):
    with pytest.raises(UsageError, match=message):
        Request(*arguments)


def test_a_ticket_that_is_over_stays_over(launcher):
    ticket = launcher.submit(Request("a red ball", 13))
    assert len(frames(ticket)) == 13
    assert list(ticket) == []


def test_what_goes_wrong_with_one_request_is_its_own(launcher, monkeypatch):
    def broken(self, prompt):
        raise RuntimeError("broken")

    with monkeypatch.context() as patch:
        patch.setattr("wavecore.replica_session.ReplicaSession.update", broken)
        with pytest.raises(RuntimeError, match="broken"):
            frames(launcher.submit(Request("a red ball", 61, prompts=[(0.5, "a blue star")])))
    assert [len(frames(launcher.submit(Request("a red ball", 13)))) for _ in range(2)] == [13, 13]


def test_close_finishes_what_is_at_work_and_gives_up_what_waits(pipe):
    rules, levels = pipe.rules("wavefront", STEPS), pipe.levels(STEPS)
    launcher = Launcher(pipe.model, rules, levels, SIZE, pipe.fps, ReplicaOptions(timeout=60))
    tickets = [launcher.submit(Request("a red ball", 121, i)) for i in range(5)]
    at_work = iter(tickets[0])
    made = len(next(at_work).frames)
    launcher.close()
    assert made + sum(len(group.frames) for group in at_work) == 121
    for ticket in tickets[2:]:
        with pytest.raises(WavecoreError, match="launcher: closed before the request began"):
            list(ticket)
    with pytest.raises(UsageError, match="launcher: expected an open one, got a closed one"):
        launcher.submit(Request("a red ball", 13))
