"""Sessions under the speculative controller: in virtual time with fixed costs, and in real time."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
import torch
from support.sessions import CAUSAL, JOINT, play, start

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.errors import UsageError
from wavecore.interactive.speculation import Speculation
from wavecore.source import to_uint8
from wavecore.trace import Trace


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
