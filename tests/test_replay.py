"""Sessions under control "free" are replayed from their logs."""

from __future__ import annotations

import json

import numpy as np
import pytest
from support.models import tiny_stream_model

from wavecore.cli import run
from wavecore.errors import InputError
from wavecore.interactive.speculation import Speculation
from wavecore.pipeline import Pipeline
from wavecore.replay import read_log, replay_log
from wavecore.trace import Trace

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def pipe():
    return Pipeline(tiny_stream_model())


def record(pipe, log, updates, groups=None, **more):
    """Play a session with updates (prompt, transition) before groups of those numbers; returns its frames."""
    with Trace(log) as trace, pipe.session("a red ball", seed=3, steps=2, trace=trace, **more) as session:
        frames = []
        for group in session:
            frames.append(group.frames)
            if len(frames) == groups:
                break
            for asked in updates.get(group.index, ()):
                session.update(*asked)
    return frames


UPDATES = {1: [("a blue star",)], 4: [("never shown",), ("a green ring", 3)], 7: [("a red star", 2)]}
PLACES = [
    {"rounds": "sequential"},
    {"rounds": "wavefront"},
    {"rounds": "stream_batch"},
    pytest.param({"placement": "replicas"}, marks=pytest.mark.slow),
    pytest.param({"rounds": "stream_batch", "placement": "layers"}, marks=pytest.mark.slow),
    pytest.param({"placement": "sequence"}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("more", PLACES)
@pytest.mark.parametrize(("num_frames", "groups"), [(61, None), (None, 10)])
def test_a_log_gives_the_same_frames_again(pipe, tmp_path, more, num_frames, groups):
    log = tmp_path / "run.jsonl"
    frames = record(pipe, log, UPDATES, groups, num_frames=num_frames, **more)
    recording, again = read_log(log), []
    assert len(recording.prompts) == 1 + len([u for asked in UPDATES.values() for u in asked])
    assert len(set(recording.versions.values())) > 2, "updates took effect"
    result = replay_log(recording, pipe, lambda group: again.append(group.frames))
    assert (result.different, result.same_totals) == ([], True)
    assert result.groups == len(recording.ready) >= len(frames)
    assert all(map(np.array_equal, frames, again))


def test_replay_finds_what_differs(pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    record(pipe, log, UPDATES, num_frames=61)
    recording = read_log(log)
    recording.prompts[0]["prompt"] = "a blue ball"
    result = replay_log(recording, pipe)
    assert result.different and result.same_totals
    recording.versions[3] = 0
    assert not replay_log(recording, pipe).same_totals


def test_a_log_that_was_cut_off_has_no_statistics(pipe, tmp_path, monkeypatch, capsys):
    log = tmp_path / "run.jsonl"
    speculation = Speculation(pacing="virtual", latents=6)
    record(pipe, log, {}, num_frames=9, control="speculative", speculation=speculation)
    monkeypatch.setattr("wavecore.loading.load", lambda model: pipe)
    assert run(["replay", str(log)]) == 0
    assert "3 groups with the recorded frames, and the recorded statistics" in capsys.readouterr().out
    lines = [line for line in log.read_text().splitlines() if '"totals"' not in line]
    log.write_text("\n".join(lines))
    assert run(["replay", str(log)]) == 0
    assert "3 groups with the recorded frames, and no recorded statistics" in capsys.readouterr().out
    log.write_text("\n".join(line for line in lines if '"display"' not in line))
    assert run(["replay", str(log)]) == 1
    assert "expected a session that made frames, got one that ended before" in capsys.readouterr().err


def test_what_cannot_be_replayed_says_why(pipe, tmp_path):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        list(pipe.restyle(np.zeros((9, 32, 64, 3), np.uint8), "a star", steps=2, trace=trace))
    with pytest.raises(InputError, match="got one that restyles: what it restyled is not in its log"):
        read_log(log)
    record(pipe, log, {}, num_frames=9)
    events = [json.loads(line) for line in log.read_text().splitlines()]
    for event in events:
        event.get("data", {}).pop("hash", None)
    log.write_text("\n".join(map(json.dumps, events)))
    with pytest.raises(InputError, match="expected a hash of each group of frames"):
        read_log(log)
    started = [event for event in events if event["kind"] in ("session", "prompt")]
    log.write_text("\n".join(map(json.dumps, started)))
    with pytest.raises(InputError, match="expected a session that made frames, got one that ended before"):
        read_log(log)
    log.write_text("")
    with pytest.raises(InputError, match="expected the log of a session, got none"):
        read_log(log)
