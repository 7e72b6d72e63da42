"""Sessions whose calls are waves that a prompt can cut."""

from __future__ import annotations

import numpy as np
import pytest
from support.sessions import play, start

from wavecore.control.clock import SECOND
from wavecore.control.speculative import UnitCosts
from wavecore.errors import UsageError
from wavecore.interactive.replay import read_recording, replay
from wavecore.interactive.speculation import Speculation
from wavecore.trace import Trace


def test_a_prompt_cuts_the_wave_that_is_under_way(pipe, tmp_path):
    """Within a call, so sooner than where calls are of one piece; and it can be replayed."""
    slow = UnitCosts(denoise=0.6, decode=0.02, store=0.05)
    responses = {}
    for cut in (False, True):
        log = tmp_path / f"{cut}.jsonl"
        with Trace(log) as trace:
            session = start(pipe, rounds="wavefront", frames=141, cut=cut, costs=slow, trace=trace)
            updates = {i: f"prompt {i}" for i in range(3, 33, 3)}
            groups, records = play(session, updates)
        shown = [r for r in records if r.outcome == "displayed"]
        responses[cut] = np.mean([r.response / SECOND for r in shown])
        assert [group.index for group in groups] == list(range(len(groups)))
        recording = read_recording(log)
        result = replay(recording, pipe.model, pipe.rules("wavefront", 2), pipe.levels(2))
        assert (result.different, result.same_totals) == ([], True)
        assert any(stop.spliced for stop in recording.stopped) == cut
    assert responses[True] <= responses[False]


def test_a_real_time_wave_is_cut_from_another_thread(pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    speculation = Speculation(latents=9, margin=0.05, cut=True)
    with (
        Trace(log) as trace,
        pipe.session(
            "a red ball", steps=2, num_frames=41, control="speculative", speculation=speculation, trace=trace
        ) as session,
    ):
        tickets = [session.update(f"prompt {group.index}") for group in session if group.index < 8]
    assert {ticket.result(1).outcome for ticket in tickets} <= {"displayed", "superseded"}
    result = replay(read_recording(log), pipe.model, pipe.rules(None, 2), pipe.levels(2))
    assert (result.different, result.same_totals) == ([], True)


def test_waves_are_cut_unless_told_otherwise(pipe, joint_pipe):
    def cut_every(pipe, **more):
        with start(pipe, **more) as session:
            return session._runner.controller.settings.cut_every

    chunk = pipe.rules("wavefront", 2).chunk_frames
    assert cut_every(pipe, rounds="wavefront") == chunk
    assert cut_every(pipe, rounds="wavefront", cut=False) is None
    assert cut_every(pipe, rounds="wavefront", whole_clip=True) is None
    assert cut_every(pipe, rounds="sequential") is None
    assert cut_every(joint_pipe, adapter="keyframes", rounds="wavefront") is None


def test_cuts_need_a_wave(pipe, joint_pipe):
    with pytest.raises(UsageError, match="cut: expected rounds wavefront on a causal model, got sequential"):
        start(pipe, cut=True)
    with pytest.raises(UsageError, match="cut: expected rounds wavefront on a causal model, got a bidirect"):
        start(joint_pipe, "keyframes", cut=True)
    with pytest.raises(UsageError, match="cut: expected latents that are decoded one by one, got whole_clip"):
        start(pipe, rounds="wavefront", cut=True, whole_clip=True)
