"""Sessions that share a device: common passes, and the frames that each would have alone."""

from __future__ import annotations

import threading
from itertools import islice

import numpy as np
import pytest
import torch
from support.models import tiny_stream_model

from wavecore.interactive.speculation import Speculation
from wavecore.pipeline import Pipeline
from wavecore.serve import sharing
from wavecore.serve.admission import Admission, Cost
from wavecore.serve.engine import PipelineEngine
from wavecore.serve.protocol import PROTOCOL, Start
from wavecore.serve.settings import ServeSettings
from wavecore.serve.sharing import make_device


@pytest.fixture
def engine():
    torch.set_num_threads(1)
    made = PipelineEngine(ServeSettings())
    made._pipe = Pipeline(tiny_stream_model())
    made._shared = make_device(made.pipe, 3, 0.25)
    made._speculation = made._learn()
    yield made
    made._shared.close()


def start(number, **options):
    return Start(id=0, protocol=PROTOCOL, prompt=f"prompt {number}", seed=number, fps=20.0, **options)


def test_sessions_share_passes_and_get_the_frames_that_they_get_alone(engine):
    gate, taken = threading.Barrier(3), {}

    def watch(number):
        stream = engine.open(start(number), lambda event: None, None)
        gate.wait(60)
        taken[number] = [group.frames for group in islice(iter(lambda: next(stream), None), 8)]
        stream.close()

    threads = [threading.Thread(target=watch, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert max(engine._shared.batches) > 1
    speculation = Speculation(latents=engine.pipe.model.defaults.chunk_frames)
    for number, groups in taken.items():
        with engine.pipe.session(
            f"prompt {number}", seed=number, control="speculative", speculation=speculation
        ) as alone:
            for one, other in zip(groups, alone, strict=False):
                assert np.abs(one.astype(int) - other.frames).max() <= 1


def test_sessions_of_another_kind_run_on_their_own(engine):
    assert engine._shared_by(start(0)) is engine._shared
    assert engine._shared_by(start(0, steps=2)) is None
    assert engine._shared_by(start(0, rounds="sequential")) is None
    streams = [engine.open(start(number), lambda event: None, None) for number in range(4)]
    assert engine._shared.full
    assert engine._shared_by(start(0)) is None
    for stream in streams:
        stream.close()
    assert not engine._shared.full


def test_sessions_know_beforehand_how_long_calls_take(engine):
    chunk = engine.pipe.model.defaults.chunk_frames
    prior = engine._speculation_of(start(0)).prior
    assert len(prior) == chunk and list(prior) == sorted(prior) and prior[0] > 0
    assert engine._speculation_of(start(0, steps=2)).prior is None


@pytest.mark.parametrize("common", [0.1, 0.3])
def test_sessions_share_where_that_was_faster(engine, monkeypatch, common):
    times = {False: [0.2, 0.4], True: [common, 0.5]}
    monkeypatch.setattr(sharing, "time_calls", lambda *arguments: times[arguments[-1] is not None])
    device = sharing.device_if_faster(engine.pipe, 3, 3, 4, 0.25)
    assert (device is not None) == (common < 0.2)
    if device is not None:
        device.close()


def test_calls_of_several_streams_are_timed(engine):
    before, chunk = len(engine._shared.batches), engine.pipe.model.defaults.chunk_frames
    for shared in (None, engine._shared):
        times = sharing.time_calls(engine.pipe, 2, chunk, 4, shared, calls=1)
        assert len(times) == 1 and times[0] > 0
    assert len(engine._shared.batches) > before
    assert not engine._shared.full


def test_as_many_share_as_are_admitted():
    assert Admission(Cost(0.1, 0.2, 0.25), 1.0, 100).sessions == 4
    assert Admission(Cost(0.1, 0.2, 0.25), 1.0, 3).sessions == 3
    assert Admission(Cost(0.1, 5.0, 0.25), 1.0, 8).sessions == 1
