"""Speculative sessions whose calls fail, hang or come too late, and wrong parameters of sessions."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from support.sessions import COSTS, break_call, play, start

from wavecore.control.speculative import UnitCosts
from wavecore.errors import UsageError, WavecoreError
from wavecore.interactive.speculation import Speculation
from wavecore.trace import Trace


@pytest.mark.parametrize("fallback", ["freeze", "drop", "stale", "retarget"])
@pytest.mark.parametrize("after", [0, 2])
def test_a_call_that_fails_is_covered_and_made_again(pipe, fallback, after):
    trace = Trace()
    session = start(pipe, fallback=fallback, trace=trace)
    break_call(session, 1, after)
    groups, (record,) = play(session, {3: "a blue star"})
    assert session.totals.failed == 1 and session.totals.fallbacks
    assert record.outcome == "displayed"
    assert groups[-1].version == 1
    assert [e.data["reason"] for e in trace.events if e.kind == "input" and "reason" in e.data] == []
    failed = [e.data["values"] for e in trace.events if e.data.get("event") == "Failed"]
    assert failed[0]["reason"] == "RuntimeError: out of memory"
    indexes = [group.index for group in groups]
    assert indexes == sorted(set(indexes))
    if fallback != "drop":
        assert indexes == list(range(len(indexes)))
    if fallback in ("stale", "retarget") and after == 0:
        assert session.totals.underruns == 0


def test_what_failed_is_restored_as_it_was(pipe):
    plain, _ = play(start(pipe))
    session = start(pipe, fallback="stale")
    break_call(session, 1)
    groups, (record,) = play(session, {3: "a blue star"})
    for a, b in zip(plain[: record.position], groups[: record.position], strict=True):
        assert np.array_equal(a.frames, b.frames)


def test_calls_that_always_fail_end_the_stream_with_their_reason(pipe):
    session = start(pipe)
    session._worker.branches.generator.call = lambda *a: (_ for _ in ()).throw(ValueError("no weights"))
    with pytest.raises(WavecoreError, match=r"session: 3 jobs in a row failed.*ValueError: no weights"):
        next(session)
    session.close()


def test_a_worker_that_does_not_answer_in_time_is_told_to_end(pipe):
    slow = UnitCosts(denoise=5.0)
    session = start(pipe, costs=slow, job_timeout=2.0)
    with pytest.raises(WavecoreError, match="3 jobs in a row failed, the last one because it was cancelled"):
        next(session)
    assert session.totals.cancelled == 3
    session.close()


def test_a_worker_that_never_answers_freezes_the_stream_and_does_not_keep_it_from_closing(pipe, tmp_path):
    """In real time: the second call hangs; updates wait, all are accounted for, and the log says what was."""
    hangs, log = threading.Event(), tmp_path / "run.jsonl"
    speculation = Speculation(latents=3, job_timeout=2.0)  # far more than the first call takes
    with Trace(log) as trace:
        session = pipe.session(
            "a red ball", steps=1, control="speculative", speculation=speculation, trace=trace
        )
        generator = session._worker.branches.generator
        call = generator.call

        def hanging(position, *arguments):
            if position:
                hangs.wait()
            yield from call(position, *arguments)

        generator.call = hanging
        try:
            shown = [next(session).index for _ in range(3)]
            tickets = [session.update("a blue star"), session.update("a green box")]
            while not [event for event in trace.events if event.kind == "cancel"]:
                time.sleep(0.01)
            session.close()
        finally:
            hangs.set()
    assert shown == [0, 1, 2]
    outcomes = [ticket.result(0).outcome for ticket in tickets]
    assert outcomes[0] in ("superseded", "lost"), "by whether the call that hangs is its own"
    assert outcomes[1] == "lost"
    reasons = [event.data["reason"] for event in trace.events if event.kind in ("cancel", "ignore")]
    assert "no end after" in reasons[0] and reasons[-1] == "a call does not end"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adapter": "telepathy"}, "adapter: expected one of retained-prefix"),
        ({"adapter": "keyframes"}, "adapter: expected one of retained-prefix, clean-prefill with a causal"),
        ({"latents": -1}, "latents: expected a whole number of at least 1, got -1"),
        ({"latents": 0}, "latents: expected a whole number of at least 1, got 0"),
        ({"fallback": "panic"}, "fallback: expected one of freeze"),
        ({"pacing": "warp"}, "pacing: expected one of real, virtual"),
        ({"margin": float("nan")}, "margin: expected a finite number"),
        ({"margin": -1.0}, "margin: expected a finite number"),
        ({"underrun_rate": 2.0}, "target: expected a number within"),
        ({"commit_lead": -0.1}, "commit_lead: expected a finite"),
        ({"job_timeout": 0.0}, "job_timeout: expected more than 0"),
        ({"costs": COSTS}, "costs: expected virtual pacing"),
    ],
)
def test_wrong_parameters_are_named(pipe, more, message):
    with pytest.raises(UsageError, match=message):
        pipe.session("a red ball", control="speculative", speculation=Speculation(**more))


def test_wrong_combinations_are_named(pipe, joint_pipe):
    with pytest.raises(UsageError, match="rounds: expected wavefront or sequential with speculative"):
        pipe.session("a red ball", control="speculative", rounds="stream_batch")
    with pytest.raises(UsageError, match="speculation: expected none with control 'free'"):
        pipe.session("a red ball", speculation=Speculation())
    with pytest.raises(UsageError, match="model: expected a causal model for control 'free', got tiny joint"):
        joint_pipe.session("a red ball")
    with pytest.raises(UsageError, match="model: expected a causal model for restyling"):
        joint_pipe.restyle([], "a red ball")
    with pytest.raises(UsageError, match=r"adapter: expected one of boundary-image.* with a bidirectional"):
        start(joint_pipe)
    with pytest.raises(UsageError, match="prompt: expected text that is not blank"):
        pipe.session(" ", control="speculative")
    with start(pipe) as session, pytest.raises(UsageError, match="prompt: expected text"):
        session.update(3)
