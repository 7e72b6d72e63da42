"""Recorded sessions again: the same frames and statistics, whatever happened in them."""

from __future__ import annotations

import threading
from contextlib import suppress
from random import Random

import numpy as np
import pytest
from support.sessions import CAUSAL, COSTS, JOINT, break_call, play, start

from wavecore.control.speculative import FALLBACKS
from wavecore.errors import InputError, UsageError
from wavecore.interactive.replay import read_recording, replay
from wavecore.interactive.speculation import Speculation
from wavecore.trace import Trace

PROMPTS = ("a red ball", "a blue star", "a green box", "a white cross")


@pytest.mark.parametrize("adapter", ["retained-prefix", "clean-prefill", "keyframes"])
@pytest.mark.parametrize("fallback", ["drop", "retarget"])
def test_a_log_gives_the_same_frames_and_statistics_again(pipe, joint_pipe, adapter, fallback, tmp_path):
    chosen, log = pipe if adapter in CAUSAL else joint_pipe, tmp_path / "run.jsonl"
    with Trace(log) as trace:
        session = start(chosen, adapter, fallback=fallback, frames=81, trace=trace)
        break_call(session, 2)
        groups, _ = play(session, {3: "a blue star", 4: "a green box", 9: "a white cross"})
    recording = read_recording(log)
    again = []
    rules, levels = chosen.rules("sequential", 2), chosen.levels(2)
    result = replay(recording, chosen.model, rules, levels, again.append)
    assert (result.different, result.same_totals) == ([], True)
    assert result.groups == len(groups)
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(groups, again, strict=True))
    assert result.totals == session.totals.as_dict()


def test_a_real_time_session_is_replayed(pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    with (
        Trace(log) as trace,
        pipe.session("a red ball", steps=1, num_frames=17, control="speculative", trace=trace) as session,
    ):
        for group in session:
            if group.index == 1:
                session.update("a blue star")
    result = replay(read_recording(log), pipe.model, pipe.rules(None, 1), pipe.levels(1))
    assert (result.groups, result.different, result.same_totals) == (5, [], True)


def play_at_random(session, random):
    """Some groups of a session, with updates from another thread at whatever time they come."""
    over = threading.Event()

    def ask():
        with suppress(UsageError):  # a stream may end by itself
            while not over.wait(random.uniform(0, 0.05)):
                session.update(random.choice(PROMPTS))

    asking = threading.Thread(target=ask)
    shown, last = 0, random.randint(6, 18)
    with session:
        asking.start()
        for group in session:
            shown += 1
            if group.index >= last:
                break
        over.set()
        asking.join()
    return shown


def random_session(pipe, joint_pipe, random, trace):
    """A session with parameters that fit each other, in real or in virtual time, with a call that fails."""
    causal = random.random() < 0.6
    cut = causal and random.random() < 0.5
    real = random.random() < 0.4
    speculation = Speculation(
        adapter=random.choice(CAUSAL if causal else JOINT),
        latents=random.randint(3, 9),
        overlap=random.choice([1, 2]),
        fallback=random.choice(FALLBACKS),
        commit_lead=random.choice([0.0, 0.0, 0.1]),
        whole_clip=not cut and random.random() < 0.3,
        cut=cut,
        pacing="real" if real else "virtual",
        costs=None if real else random.choice([None, COSTS]),
    )
    session = (pipe if causal else joint_pipe).session(
        "a red ball",
        seed=random.randint(0, 9),
        steps=random.choice([1, 2]),
        fps=random.choice([16, 30, 64]),
        rounds="wavefront" if cut else random.choice(["wavefront", "sequential"]),
        control="speculative",
        speculation=speculation,
        trace=trace,
    )
    if random.random() < 0.4:
        break_call(session, random.randint(1, 3), random.randint(0, 2))
    return session


def check_any_session(pipe, joint_pipe, seed, log):
    """Whatever happened in a session, and whenever, its log gives the same frames and statistics again."""
    random = Random(seed)
    with Trace(log) as trace:
        session = random_session(pipe, joint_pipe, random, trace)
        shown = play_at_random(session, random)
    recording = read_recording(log)
    stated = recording.description
    chosen = joint_pipe if stated["model"] == "tiny joint" else pipe
    rules, levels = chosen.rules(stated["rounds"], stated["steps"]), chosen.levels(stated["steps"])
    result = replay(recording, chosen.model, rules, levels)
    assert (result.different, result.same_totals) == ([], True), stated
    assert result.groups >= shown


@pytest.mark.parametrize("seed", range(5))
def test_any_session_is_replayed(pipe, joint_pipe, seed, tmp_path):
    check_any_session(pipe, joint_pipe, seed, tmp_path / "run.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5, 85))
def test_many_sessions_are_replayed(pipe, joint_pipe, seed, tmp_path):
    check_any_session(pipe, joint_pipe, seed, tmp_path / "run.jsonl")


def test_replay_finds_what_differs(pipe, joint_pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        play(start(pipe, frames=21, trace=trace))
    text = log.read_text()
    changed = text.replace('"seed":3', '"seed":4')
    assert changed != text
    log.write_text(changed)
    result = replay(read_recording(log), pipe.model, pipe.rules("sequential", 2), pipe.levels(2))
    assert result.different == list(range(6)) and result.same_totals
    log.write_text(text.replace('fingerprint":"', 'fingerprint":"0'))
    with pytest.raises(InputError, match="model: expected the recorded tiny, got one with other weights"):
        replay(read_recording(log), pipe.model, pipe.rules("sequential", 2), pipe.levels(2))


def test_wrong_logs_are_named(tmp_path):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        trace.record("run")
    with pytest.raises(InputError, match="expected the log of a session with control speculative, got none"):
        read_recording(log)
    with Trace(log) as trace:
        trace.record("input", event="Explode", values={})
    with pytest.raises(InputError, match="line 1: expected an event of the controller"):
        read_recording(log)
    with pytest.raises(InputError, match="cannot read"):
        read_recording(tmp_path / "none.jsonl")
