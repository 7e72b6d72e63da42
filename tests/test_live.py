"""A live source through a session: delivery, drops, stalls, one frame, black frames, a source that fails."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from test_restyling import HEIGHT, WIDTH, clip, pipe  # noqa: F401

from wavecore.control.streaming import (
    BatchingController,
    BatchingSettings,
    IntakeSettings,
    StreamingSettings,
)
from wavecore.errors import WavecoreError
from wavecore.live import LiveFrames
from wavecore.media import LiveSource
from wavecore.placement.device import SharedDevice
from wavecore.trace import Trace

ON_THE_OTHER_RANK = {"placement": "layers", "devices": 2, "encode_on": 1, "decode_on": 1}


class Scripted(LiveSource):
    """Frames with waits between them; then perhaps a fault."""

    def __init__(self, frames, wait=lambda index: 0.0, fault=None, end=True):
        super().__init__("script", (WIDTH, HEIGHT))
        self.frames, self.wait, self.end, self.late_fault = frames, wait, end, fault
        self.closed = threading.Event()

    def __iter__(self):
        for index, frame in enumerate(self.frames):
            if self.closed.wait(self.wait(index)):
                return
            yield frame
        self.fault = self.late_fault
        if not self.end:
            self.closed.wait()

    def close(self):
        self.closed.set()


def live_session(pipe, source, settings, timeout=10.0, longest=None):  # noqa: F811
    """A source and the session that restyles it, and what the session logs."""
    frames = LiveFrames(source, settings, lambda first: 1 if first else 4, timeout)
    trace = Trace()
    session = pipe.restyle(
        frames,
        "a red ball",
        rounds="stream_batch",
        steps=settings.passes,
        streaming=StreamingSettings(chunk_frames=1, first_chunk_frames=1, longest_chunk_frames=longest),
        hold=frames.hold,
        length=None if longest is None else frames.length,
        trace=trace,
    )
    frames.attach(trace)
    return frames, session, trace


def restyle(pipe, source, steps=2, realtime=False, timeout=10.0, slow=0.0, longest=None, **intake):  # noqa: F811
    settings = IntakeSettings(passes=steps, realtime=realtime, **intake)
    frames, session, trace = live_session(pipe, source, settings, timeout, longest)
    shown = []
    with session:
        for group in session:
            time.sleep(slow)
            shown.append(frames.shown(group.frames))
    frames.close()
    return np.concatenate(shown) if shown else np.zeros((0,)), frames.report(), trace.events


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 2, 5, 23])
def test_every_frame_comes_out(pipe, steps, count):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(clip(count)), steps)
    assert len(frames) == report.emitted == report.arrived == count
    assert report.dropped == 0 and report.fault is None


def test_a_slow_model_drops_frames_keeps_the_speed_and_bounds_the_queue(pipe):  # noqa: F811
    source = Scripted(clip(200), lambda index: 0.002)
    frames, report, events = restyle(pipe, source, 1, realtime=True, slow=0.03)
    assert report.dropped > 50
    assert report.emitted + report.dropped == report.arrived == 200
    assert len(frames) == 200, "each dropped frame shows as the one after it"
    assert report.longest_queue <= 120
    assert sum(event.data["frames"] for event in events if event.kind == "drop") == report.dropped


@pytest.mark.parametrize("steps", [1, 3])
def test_chunks_grow_while_frames_wait_and_none_is_lost(pipe, steps):  # noqa: F811
    """The source gives 40 frames at once, then they come one at a time, far apart."""
    wait = lambda index: 0.0 if index < 41 else 0.05  # noqa: E731
    frames, report, events = restyle(
        pipe, Scripted(clip(70), wait), steps, longest=3, lengths=(1, 2, 3), slo=60.0
    )
    lengths = [event.data["frames"] for event in events if event.kind == "encode"]
    assert lengths[0] == 1 and max(lengths) == 3 and lengths[-2] == 1
    assert len(frames) == report.emitted == 70 and report.dropped == 0


def test_a_source_that_may_wait_loses_nothing(pipe):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(clip(200)), 1, slow=0.001)
    assert len(frames) == report.emitted == 200 and report.dropped == 0


def test_a_stall_delivers_what_is_at_work(pipe):  # noqa: F811
    """Chunks that are through their first level do not wait for the next chunk for ever."""
    gate, delivered = threading.Event(), []

    def wait(index):
        if index == 13:
            gate.wait(20)
        return 0.0

    settings = IntakeSettings(passes=4, realtime=True, stall_seconds=0.1)
    frames, session, _ = live_session(pipe, Scripted(clip(21), wait), settings)
    with session:
        for group in session:
            delivered.append(frames.shown(group.frames))
            if sum(map(len, delivered)) == 13:
                gate.set()
    frames.close()
    assert sum(map(len, delivered)) == 21
    assert gate.is_set(), "all 13 frames came out while the source stood still"


def test_a_source_that_goes_silent_ends_with_its_frames_delivered(pipe):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(clip(7), end=False), 2, timeout=0.3, stall_seconds=0.1)
    assert len(frames) == 7
    assert report.fault == "script: no frame for 0.3 s"


def test_a_source_that_fails_ends_with_its_frames_delivered(pipe):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(clip(7), fault="script: the cable is out"))
    assert len(frames) == 7
    assert report.fault == "script: the cable is out"


def test_black_frames_are_frames(pipe):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(np.zeros((9, HEIGHT, WIDTH, 3), np.uint8)))
    assert len(frames) == 9 and report.fault is None


def test_no_frame_at_all_is_an_empty_stream(pipe):  # noqa: F811
    frames, report, _ = restyle(pipe, Scripted(clip(1)[:0]))
    assert len(frames) == report.arrived == 0


@pytest.mark.parametrize("how", [{"decoders": 1}, pytest.param(ON_THE_OTHER_RANK, marks=pytest.mark.slow)])
def test_frames_decoded_elsewhere_come_out_before_the_next_ones_arrive(pipe, how):  # noqa: F811
    """A source that gives one chunk and then waits for its frames: nothing may wait for the next chunk."""
    gate = threading.Event()

    def wait(index):
        if index in (5, 9):
            assert gate.wait(60)
            gate.clear()
        return 0.0

    frames = LiveFrames(
        Scripted(clip(13), wait),
        IntakeSettings(passes=2, stall_seconds=30.0),
        lambda first: 1 if first else 4,
        60.0,
    )
    session = pipe.restyle(
        frames,
        "a red ball",
        rounds="stream_batch",
        steps=1,
        streaming=StreamingSettings(chunk_frames=1, first_chunk_frames=1),
        hold=frames.hold,
        idle=frames.idle,
        **how,
    )
    frames.attach(Trace())
    shown = []
    with session:
        for group in session:
            shown.append(frames.shown(group.frames))
            if sum(map(len, shown)) in (5, 9):
                gate.set()
    frames.close()
    assert sum(map(len, shown)) == 13


def test_several_live_streams_share_a_device_and_one_too_many_is_refused(pipe):  # noqa: F811
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=2, passes=2))
    device = SharedDevice(pipe.model.dit, controller, slo=60.0, chunks_per_second=0.01)
    controller.cost.observe(2, 0.001)
    reports = {}

    def start(index):
        frames = LiveFrames(
            Scripted(clip(23, seed=index)),
            IntakeSettings(passes=2, realtime=False),
            lambda first: 1 if first else 4,
        )
        session = pipe.restyle(
            frames,
            "a red ball",
            rounds="stream_batch",
            steps=2,
            streaming=StreamingSettings(chunk_frames=1, first_chunk_frames=1),
            hold=frames.hold,
            shared=device,
        )
        return frames, session

    def run(index, frames, session):
        frames.attach(Trace())
        with session:
            for group in session:
                frames.shown(group.frames)
        frames.close()
        reports[index] = frames.report()

    streams = [start(0), start(1)]
    with pytest.raises(WavecoreError, match="room for one more stream, got 2"):
        start(2)
    threads = [threading.Thread(target=run, args=(i, *stream)) for i, stream in enumerate(streams)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert [reports[index].emitted for index in (0, 1)] == [23, 23]
    device.close()


def test_a_rate_that_changes_while_the_stream_runs_is_followed(pipe):  # noqa: F811
    """From 100 frames a second to 25: the interval that is learned follows, and every frame comes out."""
    source = Scripted(clip(61), lambda index: 0.01 if index < 41 else 0.04)
    settings = IntakeSettings(passes=1, realtime=False)
    frames, session, _ = live_session(pipe, source, settings)
    intervals, shown = [], 0
    with session:
        for group in session:
            shown += len(frames.shown(group.frames))
            intervals.append(frames.intake.interval)
    frames.close()
    assert shown == 61
    assert intervals[-1] > 1.5 * min(intervals[2:9])


def test_a_consumer_that_stops_reading_is_waited_for_and_the_source_is_not(pipe):  # noqa: F811
    source = Scripted(clip(300), lambda index: 0.004)
    settings = IntakeSettings(passes=1, realtime=True)
    frames, session, _ = live_session(pipe, source, settings)
    shown = 0
    with session:
        for group in session:
            shown += len(frames.shown(group.frames))
            if group.index == 3:
                while frames.arrived < 250:  # nobody takes a frame while these arrive
                    time.sleep(0.01)
    frames.close()
    report = frames.report()
    assert shown == report.emitted + report.dropped == report.arrived == 300
    assert report.dropped > 80 and report.longest_queue <= frames.capacity
