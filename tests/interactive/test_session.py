"""Sessions under the speculative controller: in virtual time with fixed costs, and in real time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import UnitCosts
from wavecore.errors import InputError, UsageError, WavecoreError
from wavecore.interactive.replay import read_recording, replay
from wavecore.interactive.speculation import Speculation
from wavecore.source import to_uint8
from wavecore.trace import Trace

COSTS = UnitCosts(denoise=0.3, decode=0.01, store=0.05)
CAUSAL = ("retained-prefix", "clean-prefill")
JOINT = ("boundary-image", "latent-input", "keyframes")


def start(pipe, adapter="retained-prefix", rounds="sequential", frames=61, trace=None, costs=COSTS, **more):
    speculation = Speculation(
        adapter=adapter, latents=6, overlap=2, pacing="virtual", costs=costs, **{"margin": 0.01, **more}
    )
    return pipe.session(
        "a red ball",
        steps=2,
        seed=3,
        num_frames=frames,
        rounds=rounds,
        control="speculative",
        speculation=speculation,
        trace=trace,
    )


def play(session, updates=()):
    """All groups; `updates` maps a position to the prompt asked for when it has been shown."""
    updates, groups, tickets = dict(updates), [], []
    with session:
        for group in session:
            groups.append(group)
            if group.index in updates:
                tickets.append(session.update(updates.pop(group.index)))
    return groups, [ticket.result(0) for ticket in tickets]


@pytest.mark.parametrize("adapter", [*CAUSAL, *JOINT])
@pytest.mark.parametrize("frames", [1, 5, 30, 61])
def test_a_stream_has_the_frames_asked_for(pipe, joint_pipe, adapter, frames):
    groups, _ = play(start(pipe if adapter in CAUSAL else joint_pipe, adapter, frames=frames))
    assert sum(len(group.frames) for group in groups) == frames
    assert [group.index for group in groups] == list(range(len(groups)))
    assert [group.pts for group in groups] == pytest.approx([0, *(1 / 16 + np.arange(len(groups) - 1) / 4)])
    assert {group.version for group in groups} == {0}


@pytest.mark.parametrize(
    ("adapter", "rounds"),
    [*((a, r) for a in CAUSAL for r in ("sequential", "wavefront")), *((a, "sequential") for a in JOINT)],
)
def test_an_update_replaces_the_future_from_the_chosen_position(pipe, joint_pipe, adapter, rounds):
    chosen = pipe if adapter in CAUSAL else joint_pipe
    plain, _ = play(start(chosen, adapter, rounds))
    updated, (record,) = play(start(chosen, adapter, rounds), {6: "a blue star"})
    assert record.outcome == "displayed"
    assert record.wait + record.generation + record.alignment == record.response
    assert record.response == record.display - record.arrival
    first = record.position
    assert [group.version for group in updated] == [0] * first + [1] * (len(updated) - first)
    for before, after in zip(plain[:first], updated[:first], strict=True):
        assert np.array_equal(before.frames, after.frames), f"group {before.index} changed"
    assert not np.array_equal(plain[first].frames, updated[first].frames)


def test_the_branch_is_at_the_earliest_position_that_can_be_reached(pipe):
    """Shown at 1 frame + 6 groups; a call takes 0.31 s to its first group and 0.36 s to its last, and ε."""
    trace = Trace()
    _, (record,) = play(start(pipe, trace=trace), {6: "a blue star"})
    due = {e.data["group"]: e.time for e in trace.events if e.kind == "display"}
    arrival = record.arrival / SECOND
    assert due[record.position] >= record.start / SECOND + 0.31 + 0.01 - 1e-6
    assert due[record.position - 1] < arrival + 0.31 + 0.01 + 1.25 * 0.31  # what the warm-up reserves
    decisions = [e.data for e in trace.events if e.kind == "decide" and e.data["reason"] == "pending"]
    assert decisions[-1]["position" if "position" in decisions[-1] else "group"] == record.position


def test_playback_frames_are_what_a_decoder_makes_of_the_played_latents(pipe):
    """Whatever was rolled back in between."""
    groups, records = play(start(pipe), {4: "a blue star", 7: "a green box", 11: "a white cross"})
    assert sum(record.outcome == "displayed" for record in records) >= 2
    latents = torch.stack([group.latent for group in groups], 1)[None]
    with torch.inference_mode():
        decoded = to_uint8(pipe.model.vae.decode(latents)[0])
    assert np.array_equal(np.concatenate([group.frames for group in groups]), decoded)


@pytest.mark.parametrize("adapter", [*CAUSAL, *JOINT])
def test_nothing_at_or_before_an_announced_horizon_ever_changes(pipe, joint_pipe, adapter):
    trace = Trace()
    session = start(pipe if adapter in CAUSAL else joint_pipe, adapter, frames=121, trace=trace)
    announced, shown = {}, {}
    with session:
        predictions = session._delivery._predictions
        for group in session:
            shown[group.index] = group.frames
            if group.index % 4 == 2:
                session.update(f"prompt {group.index}")
            horizon = session.horizon
            assert horizon.irrevocable <= horizon.locked <= horizon.replaceable
            assert group.index < horizon.irrevocable
            for p in predictions:
                if p < horizon.locked and p not in announced:
                    announced[p] = predictions[p].frames
    assert len(announced) >= len(shown) - 6
    for p, frames in announced.items():
        assert p not in shown or np.array_equal(shown[p], frames), f"group {p} changed"
    hashes = {}
    for event in trace.events:
        if event.kind in ("commit", "display"):
            assert hashes.setdefault(event.data["group"], event.data["hash"]) == event.data["hash"]


def test_an_update_during_bootstrap_follows_it(pipe):
    session = start(pipe)
    ticket = session.update("a blue star")
    groups, _ = play(session)
    record = ticket.result(0)
    assert record.outcome == "displayed" and record.position >= 1
    assert groups[0].version == 0 and groups[-1].version == 1


def test_an_identical_update_makes_no_branch(pipe):
    plain, _ = play(start(pipe))
    session = start(pipe)
    groups, (record,) = play(session, {5: "a red ball"})
    assert (record.outcome, record.response) == ("identical", None)
    assert session.totals.identical == 1
    assert all(np.array_equal(a.frames, b.frames) for a, b in zip(plain, groups, strict=True))


def test_updates_faster_than_generation_are_all_accounted_for(pipe):
    session = start(pipe, frames=81)
    tickets = []
    with session:
        for group in session:
            if 4 <= group.index < 14:
                tickets += [session.update(f"prompt {group.index} {i}") for i in range(100)]
    outcomes = [ticket.result(0).outcome for ticket in tickets]
    assert len(outcomes) == 1000 and set(outcomes) <= {"displayed", "superseded", "lost"}
    assert outcomes[-1] == "displayed" and outcomes.count("displayed") >= 3
    totals = session.totals
    assert totals.superseded + totals.displayed + totals.lost == 1000
    assert totals.underruns == 0


def test_after_close_nothing_happens(pipe):
    session = start(pipe, frames=None)
    next(session)
    ticket = session.update("a blue star")
    session.close()
    assert ticket.result(0).outcome == "lost"
    with pytest.raises(UsageError, match="update: expected an open stream, got a closed one"):
        session.update("a green box")
    with pytest.raises(StopIteration):
        next(session)
    session.close()


# -- faults -------------------------------------------------------------------------------


def break_call(session, number, after=1):
    """Let call `number` of the session fail after `after` reports."""
    generator = session._worker.branches.generator
    call, calls = generator.call, []

    def failing(*arguments):
        calls.append(arguments)
        made = call(*arguments)
        try:
            for index, step in enumerate(made):
                if len(calls) - 1 == number and index == after:
                    raise RuntimeError("out of memory")
                yield step
        finally:
            made.close()

    generator.call = failing


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


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"adapter": "telepathy"}, "adapter: expected one of retained-prefix"),
        ({"adapter": "keyframes"}, "adapter: expected one of retained-prefix, clean-prefill with a causal"),
        ({"latents": -1}, "latents: expected at least 1"),
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


# -- real time ----------------------------------------------------------------------------


def test_real_time_shows_groups_when_they_are_due_and_answers_updates(pipe):
    speculation = Speculation(latents=9, margin=0.05)
    with pipe.session(
        "a red ball", steps=1, num_frames=33, control="speculative", speculation=speculation
    ) as session:
        times, tickets = [], []
        for group in session:
            times.append(time.monotonic())
            if group.index == 2:
                caller = threading.Thread(target=lambda: tickets.append(session.update("a blue star")))
                caller.start()
        caller.join()
    assert np.diff(times).sum() >= 0.06 + 0.25 * 7 - 0.05, "not before they are due"
    record = tickets[0].result(5)
    assert record.outcome == "displayed"
    assert abs(record.wait + record.generation + record.alignment - record.response) <= MILLISECOND
    assert group.version == 1


def test_closing_a_real_time_session_ends_its_threads(pipe):
    session = pipe.session("a red ball", control="speculative")
    next(session)
    session.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("wavecore-")]


# -- replay -------------------------------------------------------------------------------


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


# -- an interactive wave ------------------------------------------------------------------


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


def test_cuts_need_a_wave(pipe, joint_pipe):
    with pytest.raises(UsageError, match="cut: expected rounds wavefront on a causal model, got sequential"):
        start(pipe, cut=True)
    with pytest.raises(UsageError, match="cut: expected rounds wavefront on a causal model, got a bidirect"):
        start(joint_pipe, "keyframes", cut=True)
    with pytest.raises(UsageError, match="cut: expected latents that are decoded one by one, got whole_clip"):
        start(pipe, rounds="wavefront", cut=True, whole_clip=True)
