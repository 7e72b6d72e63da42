"""Speculative sessions whose rounds run over processes."""

from __future__ import annotations

import os
import signal

import pytest
from support.sessions import play, start

from wavecore.control.speculative import UnitCosts
from wavecore.errors import WavecoreError
from wavecore.interactive.replay import read_recording, replay
from wavecore.interactive.speculation import Speculation
from wavecore.trace import Trace

pytestmark = pytest.mark.usefixtures("one_thread")

SLOW = UnitCosts(denoise=0.6, decode=0.02, store=0.05)
PLACES = ("replicas", "layers")


@pytest.mark.parametrize("placement", PLACES)
@pytest.mark.parametrize("adapter", ["retained-prefix", "clean-prefill"])
def test_a_prompt_cuts_a_wave_over_processes_and_one_device_replays_it(pipe, tmp_path, placement, adapter):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        session = start(pipe, adapter, "wavefront", 81, trace, SLOW, placement, cut=True)
        groups, records = play(session, {i: f"prompt {i}" for i in range(3, 18, 3)})
    assert [group.index for group in groups] == list(range(21))
    assert any(record.outcome == "displayed" for record in records)
    recording = read_recording(log)
    assert recording.description["placement"] == placement
    assert any(stop.by is not None for stop in recording.stopped), "a wave was cut"
    result = replay(recording, pipe.model, pipe.rules("wavefront", 2), pipe.levels(2))
    assert (result.different, result.same_totals, result.groups) == ([], True, 21)


@pytest.mark.slow
@pytest.mark.parametrize("placement", PLACES)
def test_a_real_time_session_over_processes(pipe, tmp_path, placement):
    log = tmp_path / "run.jsonl"
    speculation = Speculation(latents=9, margin=0.05, cut=True)
    with (
        Trace(log) as trace,
        pipe.session(
            "a red ball",
            steps=2,
            num_frames=41,
            control="speculative",
            placement=placement,
            speculation=speculation,
            trace=trace,
        ) as session,
    ):
        tickets = [session.update(f"prompt {group.index}") for group in session if group.index < 8]
    assert {ticket.result(1).outcome for ticket in tickets} <= {"displayed", "superseded"}
    result = replay(read_recording(log), pipe.model, pipe.rules(None, 2), pipe.levels(2))
    assert (result.different, result.same_totals) == ([], True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("placement", "message"), [("replicas", r"rank 1 \(stages in turn\)"), ("layers", "rank 1")]
)
def test_a_process_that_is_killed_is_named(pipe, placement, message):
    with start(pipe, rounds="wavefront", frames=None, placement=placement, devices=2) as session:
        next(session)
        calls = session._worker.branches.generator.placement
        if placement == "replicas":
            process = calls._replicas.pids[1]
        else:
            process = calls._placement._ring._processes[0].pid
        os.kill(process, signal.SIGKILL)
        with pytest.raises(WavecoreError, match=f"3 jobs in a row failed.*{message}"):
            for _ in session:
                pass


def test_a_session_in_one_batch_with_others_cannot_be_replayed(pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace, start(pipe, trace=trace, frames=5) as session:
        list(session)
    recording = read_recording(log)
    recording.description["placement"] = "shared"
    with pytest.raises(WavecoreError, match="placement: expected a session that ran alone"):
        replay(recording, pipe.model, pipe.rules("sequential", 2), pipe.levels(2))
