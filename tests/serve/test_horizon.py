"""Streams under the speculative controller: what was announced as committed never differs."""

from __future__ import annotations

import hashlib
import itertools
import random
from dataclasses import dataclass

import pytest
import torch
from support.models import tiny_stream_model
from support.serving import SyntheticEngine, serving, wait_until

from wavecore.client import Client
from wavecore.pipeline import Pipeline
from wavecore.serve.engine import PipelineEngine
from wavecore.serve.settings import ServeSettings


class TinyEngine(PipelineEngine):
    """The real engine, on a model that is quick and random."""

    def __init__(self) -> None:
        super().__init__(ServeSettings())
        self._pipe = Pipeline(tiny_stream_model())

    def load(self):
        self._speculation = self._learn()
        return SyntheticEngine().load()


@pytest.fixture(scope="module")
def server():
    torch.set_num_threads(1)
    with serving(TinyEngine()) as running:
        yield running


@dataclass
class Log:
    """Hash of every position as it was first sent, and what was announced with it."""

    hashes: dict[int, str]

    def take(self, frame) -> None:
        if frame.header.frame:
            return
        digest = hashlib.blake2b(frame.header.data).hexdigest()
        assert frame.position < frame.header.commit[0], "sent before it was announced"
        assert self.hashes.setdefault(frame.position, digest) == digest


@pytest.mark.parametrize("updates", [40, pytest.param(1_000, marks=pytest.mark.slow)])
def test_what_is_committed_never_changes(server, updates):
    rng = random.Random(updates)
    log, done = Log({}), 0
    with Client(server.url, decode=False) as client:
        assert client.start("prompt 0", fps=40.0, steps=1).control == "speculative"
        for frame in client:
            log.take(frame)
            if rng.random() < 0.3:
                client.update(f"prompt {rng.randrange(5)}")
                done += 1
            if rng.random() < 0.02 and client.state is not None and client.state.cursor > 4:
                state = client.state
                client.seek(rng.randrange(max(state.retained, state.cursor - 6), state.cursor))
            if done >= updates:
                break
        wait_until(lambda: client.state.counters["superseded"] > 0)
        client.stop()
    assert len(log.hashes) > 5


@pytest.mark.slow  # in real time, which a busy machine does not keep
def test_verbs_on_a_speculative_stream(server):
    with Client(server.url, decode=False) as client:
        client.start("a prompt", fps=20.0, steps=1)
        source = iter(client)
        list(itertools.islice(source, 9))
        update = client.update("another")
        taken = list(itertools.islice(source, 40))
        assert taken[-1].version == 1
        wait_until(lambda: client.records and client.records[-1].transport is not None)
        record = client.records[-1]
        assert (record.update, record.outcome) == (update, "displayed")
        parts = record.wait + record.generation + record.alignment + record.transport
        assert parts == pytest.approx(record.shown - record.arrival, abs=0.005)
        assert any(version == 1 for *_, version in client.state.versions)
        client.pause()
        wait_until(lambda: client.state.paused)
        while client.state.commit[2] < client.state.cursor + 2:  # paused where nothing is left to skip
            client.resume()
            list(itertools.islice(source, 4))
            client.pause()
            wait_until(lambda: client.state.paused)
        cursor = client.state.cursor
        client.seek(cursor + 1)
        client.resume()
        rest = [f for f in itertools.islice(source, 24) if not f.header.replay]
        live = sorted({f.position for f in rest})
        assert cursor not in live[-4:] and live[-1] >= cursor + 1
        client.stop()
