"""Free-running sessions played at their rate."""

from __future__ import annotations

import threading
import time

import pytest
from support.serving import SyntheticEngine

from wavecore.errors import UsageError
from wavecore.serve.protocol import Start

START = Start(id=0, protocol=1, prompt="first")


def open_stream(**engine):
    events = []
    stream = SyntheticEngine(**{"fps": 80.0, **engine}).open(START, events.append, None)
    return stream, events


def take(stream, count):
    groups, times = [], []
    for _ in range(count):
        groups.append(next(stream))
        times.append(time.monotonic())
    return groups, times


def test_groups_come_at_the_frame_rate():
    stream, events = open_stream()
    groups, times = take(stream, 10)
    assert [g.index for g in groups] == list(range(10))
    assert times[-1] - times[0] == pytest.approx(1 / 80 + 8 * 0.05, abs=0.05)
    assert [e.data["group"] for e in events if e.kind == "display"] == list(range(10))
    assert stream.totals.played == 10


def test_an_update_is_recorded_part_by_part():
    stream, events = open_stream()
    take(stream, 2)
    future = stream.update("second", 1)
    groups, _ = take(stream, 2)
    record = future.result(0)
    assert groups[-1].version == record.version == 1
    assert record.outcome == "displayed"
    assert record.wait + record.generation + record.alignment == record.response
    assert [e.data["version"] for e in events if e.kind == "update"] == [1]


def test_of_several_updates_the_latest_wins():
    stream, _ = open_stream()
    take(stream, 1)
    futures = [stream.update(text, 1) for text in ("a", "b", "c")]
    take(stream, 2)
    assert [f.result(0).outcome for f in futures] == ["superseded", "superseded", "displayed"]
    assert (stream.totals.superseded, stream.totals.displayed) == (2, 1)


def test_nothing_is_due_while_paused():
    stream, _ = open_stream()
    take(stream, 2)
    stream.pause()
    threading.Timer(0.4, stream.resume).start()
    began = time.monotonic()
    take(stream, 1)
    assert time.monotonic() - began >= 0.39
    assert stream.totals.underruns == 0
    _, times = take(stream, 3)
    assert times[2] - times[0] == pytest.approx(0.1, abs=0.05), "not hurried afterwards"


def test_a_skipped_position_is_due_at_once():
    stream, _ = open_stream(fps=4.0)
    take(stream, 2)
    stream.skip()
    began = time.monotonic()
    take(stream, 1)
    assert time.monotonic() - began < 0.5, "a group lasts 1 s"


def test_a_model_that_does_not_keep_up_underruns_and_is_not_hurried():
    stream, events = open_stream(seconds=0.1)
    _, times = take(stream, 4)
    assert stream.totals.underruns == len([e for e in events if e.kind == "underrun"]) == 3
    assert times[-1] - times[0] >= 0.3


def test_closing_ends_the_wait_and_settles_updates():
    stream, _ = open_stream(fps=1.0)
    take(stream, 2)
    future = stream.update("second", 1)
    threading.Timer(0.2, stream.close).start()
    with pytest.raises(StopIteration):
        next(stream)
    stream.close()
    assert future.result(1).outcome == "lost"
    with pytest.raises(UsageError, match="open stream"):
        stream.update("third", 1)
