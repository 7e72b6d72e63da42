"""The event log: recording, reading back, and the Perfetto export."""

from __future__ import annotations

import importlib
import json
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavecore.errors import InputError
from wavecore.trace import (
    KINDS,
    Event,
    Trace,
    exposed_waits,
    read_events,
    to_perfetto,
    write_perfetto,
)

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text()
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=5,
)


class Ticks:
    """A clock that goes one second further at each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def test_times_come_from_the_clock() -> None:
    trace = Trace(clock=Ticks())
    trace.record("admit", chunk=3)
    with trace.span("decode", track="device 1", chunk=3) as data:
        data["frames"] = 4
    trace.record("ready", time=7.5, group=0)
    assert trace.events == [
        Event("admit", 1.0, data={"chunk": 3}),
        Event("decode", 2.0, 1.0, "device 1", {"chunk": 3, "frames": 4}),
        Event("ready", 7.5, data={"group": 0}),
    ]


def test_span_is_recorded_when_its_block_fails() -> None:
    trace = Trace(clock=Ticks())
    with pytest.raises(RuntimeError), trace.span("round", round=0):
        raise RuntimeError
    assert [event.kind for event in trace.events] == ["round"]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.builds(
            Event,
            kind=st.sampled_from(KINDS),
            time=st.floats(0, 1e6),
            duration=st.floats(0, 1e3),
            track=st.text(),
            data=st.dictionaries(st.text(), json_values, max_size=3),
        )
    )
)
def test_file_round_trip(tmp_path_factory: pytest.TempPathFactory, events: list[Event]) -> None:
    path = tmp_path_factory.mktemp("log") / "run.jsonl"
    reserved = {"self", "kind", "time", "duration", "track"}
    events = [e for e in events if not reserved & set(e.data)]
    with Trace(path) as trace:
        for e in events:
            trace.record(e.kind, time=e.time, duration=e.duration, track=e.track, **e.data)
        assert trace.events == events, "readable while it is being written"
    assert list(read_events(path)) == events
    assert len(path.read_bytes().splitlines()) == len(events)


@pytest.mark.parametrize("to_file", [False, True])
def test_many_threads(tmp_path: Path, to_file: bool) -> None:
    trace = Trace(tmp_path / "run.jsonl" if to_file else None)

    def work(thread: int) -> None:
        for index in range(500):
            trace.record("publish", track=str(thread), index=index, text="x" * 200)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trace.close()
    for thread in range(8):
        indices = [e.data["index"] for e in trace.events if e.track == str(thread)]
        assert indices == list(range(500))


def test_memory_is_bounded() -> None:
    trace = Trace(limit=10)
    for group in range(100):
        trace.record("ready", group=group)
    assert [e.data["group"] for e in trace.events] == list(range(90, 100))


def test_unknown_kind() -> None:
    with pytest.raises(ValueError, match="expected one of run, prompt"):
        Trace().record("redy")  # type: ignore[arg-type]


def test_bad_logs(tmp_path: Path) -> None:
    good = b'{"kind":"ready","time":1.0}\n'
    path = tmp_path / "run.jsonl"
    path.write_bytes(good + good[:10])
    assert len(list(read_events(path))) == 1, "the line that a killed run did not finish"
    for line in (
        b"not json\n",
        b"{}\n",
        b'{"kind":"redy","time":1.0}\n',
        b'{"kind":"ready","time":"x"}\n',
        b"\n",
    ):
        path.write_bytes(good + line + good)
        with pytest.raises(InputError, match=r"run\.jsonl: line 2: expected an event"):
            list(read_events(path))
    with pytest.raises(InputError, match="cannot read: No such file"):
        list(read_events(tmp_path / "none.jsonl"))
    with pytest.raises(InputError, match="its directory does not exist"):
        Trace(tmp_path / "none" / "run.jsonl")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").symlink_to("/dev/full")
    trace = Trace(tmp_path / "run.jsonl")
    with pytest.raises(InputError, match=r"run\.jsonl: cannot write: the disk is full"):
        trace.record("run")


def test_perfetto(tmp_path: Path) -> None:
    events = [
        Event("round", 10.0, 0.5, "device 0", {"round": 1}),
        Event("ready", 10.75, track="session", data={"group": 0}),
        Event("prompt", 9.0, track="session"),
    ]
    write_perfetto(tmp_path / "run.json", events)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written == json.loads(json.dumps(to_perfetto(events)))
    entries = written["traceEvents"]
    rows = {e["args"]["name"]: e["tid"] for e in entries if e["name"] == "thread_name"}
    assert rows == {"session": 1, "device 0": 2}
    slices = [e for e in entries if e["ph"] == "X"]
    assert [(e["name"], e["ts"], e["dur"], e["tid"], e["args"]) for e in slices] == [
        ("round", 1e6, 5e5, rows["device 0"], {"round": 1})
    ]
    instants = [(e["name"], e["ts"]) for e in entries if e["ph"] == "i"]
    assert instants == [("prompt", 0.0), ("ready", 1.75e6)]
    assert to_perfetto([])["traceEvents"], "an empty log is a valid trace"


def test_nvtx_ranges_when_the_package_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    fake = SimpleNamespace(push_range=calls.append, pop_range=lambda: calls.append("pop"))
    monkeypatch.setitem(sys.modules, "nvtx", fake)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name == "nvtx" or None)
    trace = Trace()
    with trace.span("round"):
        trace.record("publish")
    assert calls == ["round", "pop"]


def test_exposed_waits_of_an_edge_are_those_of_a_round():
    trace = Trace()
    for index in (3, 4):
        for layer, exposed in enumerate((0.0, 0.002)):
            trace.record("wait", duration=0.01, layer=layer, round=index, edge=[1, 0], exposed=exposed)
    trace.record("wait", chunk=1)  # of something else
    trace.record("wait", layer=0, round=4, edge=[2, 1], exposed=0.001)
    assert exposed_waits(trace.events) == {(1, 0): pytest.approx(0.002), (2, 1): pytest.approx(0.001)}
