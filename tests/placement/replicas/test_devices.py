"""Ranks with devices of their own: pages that they map from each other. The CPU stands for every device."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from support.models import levels_of, run_stream
from support.replicas import LATENT, drive, family, segments, sent_bytes
from wavecore._native import HostDriver

import wavecore
from wavecore.cache import PoolSize
from wavecore.errors import UsageError
from wavecore.placement.exchange import Arrival, Target
from wavecore.placement.peer import DevicePages, PeerExchange
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.placement.segment import Layout, StreamShape
from wavecore.rounds import StageMap, Wavefront, wavefront

CHUNKS = 8


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_latents_are_those_of_one_device_slot_by_slot(dit, nursery, steps):
    rules = Wavefront(steps=steps)
    options = ReplicaOptions(devices=("cpu",) * (steps + 1), timeout=30)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert len(replicas.pids) == steps + 1
        expected = run_stream(dit, wavefront(steps, CHUNKS), levels_of(steps), "slots")[0]
        assert all(map(torch.equal, drive(replicas, dit, rules, CHUNKS), expected))
        frame = 2 * 6 * dit.config.dim * 4
        edges = sum(len(rules.round(i, CHUNKS).edges()) for i in range(rules.count(CHUNKS)))
        assert sum(sent_bytes(replicas, 0).values()) == edges * dit.config.layers * rules.chunk_frames * frame


@pytest.mark.parametrize("ranks", [None, ((0, 4), (1, 2, 3))], ids=str)
@pytest.mark.parametrize("generations", [1, 2])
def test_fewer_devices_than_stages_and_streams_one_after_the_other(dit, nursery, ranks, generations):
    rules = Wavefront(steps=4)
    options = ReplicaOptions(ranks=ranks, devices=("cpu", "cpu"), generations=generations, timeout=30)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert len(replicas.pids) == 2
        for chunks in (3, CHUNKS):
            expected = run_stream(dit, wavefront(4, chunks), levels_of(4), "slots")[0]
            assert all(map(torch.equal, drive(replicas, dit, rules, chunks), expected))


@pytest.mark.parametrize("rules", [{"anchor_position": "reference"}, {"anchor_chunks": 2, "history": 0}])
def test_anchors_that_move(dit, nursery, rules):
    """Their keys are sent without rotation, and rotated where they are read."""
    rules = Wavefront(steps=2, **rules)
    rounds = [rules.round(index, 10) for index in range(rules.count(10))]
    assert any(slot.keep_unroped for round in rounds for slot in round.slots)
    with Replicas(dit, rules, LATENT, ReplicaOptions(devices=("cpu",) * 3), nursery=nursery) as replicas:
        expected, _ = run_stream(dit, rounds, levels_of(2), "slots")
        assert all(map(torch.equal, drive(replicas, dit, rules, 10), expected))


def test_a_model_runs_on_devices_as_it_does_here():
    pipe = wavecore.load("sprites")

    def frames(**options):
        with pipe.session("a red ball", steps=2, num_frames=37, size=(32, 64), **options) as session:
            frames = np.concatenate([group.frames for group in session])
            processes.update(family())
            return frames

    before, processes = segments(family()), set()
    replicas = ReplicaOptions(devices=("cpu", "cpu"), timeout=60)
    there = frames(placement="replicas", replicas=replicas)
    assert np.abs(there.astype(int) - frames()).max() <= 1  # the batched forward here differs by rounding
    assert len(processes) > 2 and segments(processes) <= before


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": ("cpu",), "mode": "early"}, "mode: expected paged for replicas on devices, got early"),
        ({"devices": ("cpu",), "transport": "gloo"}, "transport: expected shared for .*, got gloo"),
        ({"devices": ()}, "devices: expected at least one, got none"),
        ({"devices": ("cpu", "moon")}, "devices: expected ones that work here, got moon: "),
    ],
    ids=str,
)
def test_devices_that_cannot_be(dit, nursery, options, message):
    with pytest.raises(UsageError, match=f"^{message}"):
        Replicas(dit, Wavefront(steps=2), LATENT, ReplicaOptions(**options), nursery=nursery)


def exchanges(generations=2):
    """Both sides of a wave of one step in this process: rank 1, the store, sends to rank 0."""
    shape = StreamShape(2, 2, 1, 4, 1, 8, 1, (1, 1, 1), torch.float32)
    layouts = [Layout(shape, PoolSize(2, 0), 0, True)] * 2
    driver, pages = HostDriver(), [DevicePages.allocate(layouts[0], torch.device("cpu")) for _ in range(2)]
    segments = [driver.allocate(layouts[0].bytes) for _ in range(2)]
    made = [
        PeerExchange(
            dict(enumerate(pages)),
            *(driver, rank, StageMap(2, 2), layouts, segments, "paged", generations, 5.0, False),
        )
        for rank in range(2)
    ]
    return made, [each.pool for each in pages]


def test_a_page_is_written_again_only_when_it_was_read():
    (reader, writer), (there, here) = exchanges()
    slot = SimpleNamespace(stage=1, frames=1, keep_unroped=False)
    view = SimpleNamespace(write_ids=torch.zeros(1, 1, dtype=torch.int32), unroped_ids=None)
    written = []

    def write():
        for tick in (1, 2, 3):
            here.k_pages[0].fill_(tick)
            writer.begin(tick, slot, view, [Target(0, 0, [0], [])], [], True)
            writer.publish(0)
            written.append(tick)

    thread = threading.Thread(target=write)
    thread.start()
    while len(written) < 2:
        time.sleep(0.01)
    time.sleep(0.1)  # it waits now
    assert written == [1, 2] and (there.k_pages[0][0] == 2).all()
    reader.begin(1, None, None, [], [Arrival(slot, 1, [0], [])], True)
    reader.gate(0)
    reader.attended(0)
    thread.join()
    assert written == [1, 2, 3] and (there.k_pages[0][0] == 3).all()
