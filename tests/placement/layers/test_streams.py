"""Order between the streams of a GPU, on a stand-in that notes what each stream is given to do."""

from __future__ import annotations

import threading
from contextlib import contextmanager

import pytest
import torch

from wavecore.placement.layers.channel import BufferPool
from wavecore.placement.layers.messages import Close, Stop
from wavecore.placement.layers.streams import Mark, own_stream
from wavecore.placement.layers.worker import Incoming

GPU = torch.device("cuda", 0)


class Stream:
    def __init__(self, device=GPU):
        self.work = []

    def wait_event(self, event):
        self.work.append(event.after)


class Event:
    def record(self, stream):
        self.after = (stream, len(stream.work))


@pytest.fixture
def default(monkeypatch):
    """The stream of every thread that has none of its own."""
    everyone, own = Stream(), threading.local()

    @contextmanager
    def on(stream):
        before, own.stream = getattr(own, "stream", everyone), stream
        yield
        own.stream = before

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", on)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: getattr(own, "stream", everyone))
    return everyone


def test_a_buffer_is_written_only_after_what_another_stream_still_reads(default):
    pool, buffer = BufferPool(GPU), torch.empty(64, dtype=torch.uint8)
    default.work.append("layers that read it")
    pool.give_back(buffer)
    default.work.append("layers of later")
    with own_stream(GPU):
        receiving = torch.cuda.current_stream()
        assert pool.take(64) is buffer
        assert receiving.work == [(default, 1)], "after the readers, not after all that came later"


def test_what_is_used_after_a_mark_keeps_its_memory(default):
    kept = []

    class Noted:
        def record_stream(self, stream):
            kept.append(stream)

    with own_stream(GPU):
        mark = Mark(GPU)
    mark.wait([Noted()])
    assert kept == [default]
    assert len(default.work) == 1


class Announced:
    """A channel whose bodies come long after they were announced."""

    device = GPU

    def __init__(self):
        self.messages = [Close(0), Close(1), Stop()]
        self.streams = []

    def receive(self, source):
        self.streams.append(torch.cuda.current_stream())
        self.streams[-1].work.append("wait for the body")
        return self.messages.pop(0), [], None


def test_layers_do_not_wait_for_a_body_before_it_is_taken(default):
    channel = Announced()
    coming = Incoming(channel, 0)
    assert coming.take()[0] == Close(0)
    (receiving,) = set(channel.streams)
    assert receiving is not default
    assert default.work == [(receiving, 1)], "for the first body, and for no later one"
    assert coming.take()[0] == Close(1)
    assert default.work == [(receiving, 1), (receiving, 2)]


def test_on_a_cpu_there_is_nothing_to_wait_for():
    with own_stream(torch.device("cpu")):
        Mark(torch.device("cpu")).wait([torch.zeros(1)])
