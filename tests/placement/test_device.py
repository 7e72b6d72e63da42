"""Several streams on one device: the same frames as alone, in common batches, within the objective."""

from __future__ import annotations

import threading

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit

from wavecore.cache import pages_needed
from wavecore.control.streaming import BatchingController, BatchingSettings
from wavecore.errors import UsageError, WavecoreError
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.placement.device import SharedDevice
from wavecore.rounds import Rounds, Sequential, StreamBatch, Wavefront


def latents(placement, rules, seed, chunks, gate=None):
    handoff, text = Handoff(levels_of(rules.steps), seed, (4, HEIGHT, WIDTH)), None
    text = placement.encode_text(text_features(seed))
    final = []
    for round in Rounds(rules, chunks):
        if gate is not None:
            gate.wait(60)  # all streams submit at once, so that they can share a pass
        placement.submit(
            round, handoff.latents(round), handoff.levels_of(round), {s.chunk: text for s in round.slots}
        )
        complete = handoff.advance(round, placement.collect())
        final += [] if complete is None else [complete]
    placement.close()
    return final


def device_for(dit, streams=4, slo=30.0, rate=1e-3):
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=streams, passes=2))
    return SharedDevice(dit, controller, slo, rate)


def test_every_stream_gets_the_hidden_states_that_it_asks_for():
    dit, rules = tiny_dit(), StreamBatch(steps=2)
    device = device_for(dit)
    shared = device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    alone = LocalPlacement(dit, local_cache(dit, pages_needed(rules), HEIGHT, WIDTH))
    for placement in (shared, alone):
        placement.probe = 1
        latents(placement, rules, 0, 4)
    assert shared.embeddings.keys() == alone.embeddings.keys() == {1}
    torch.testing.assert_close(shared.embeddings[1], alone.embeddings[1])
    device.close()


@pytest.mark.parametrize(
    "rules",
    [
        StreamBatch(steps=2),
        StreamBatch(steps=2, position_limit=14),
        Wavefront(steps=2),
        Sequential(steps=2, anchor_chunks=1),
    ],
    ids=["stream_batch", "limited", "wavefront", "sequential"],
)
def test_streams_share_passes_and_get_what_they_get_alone(rules):
    dit = tiny_dit()
    alone = [
        latents(LocalPlacement(dit, local_cache(dit, pages_needed(rules), HEIGHT, WIDTH)), rules, seed, 12)
        for seed in range(3)
    ]
    device = device_for(dit)
    device.controller.cost.observe(2, 0.001)
    gate, results = threading.Barrier(3), {}

    def run(seed, placement):
        results[seed] = latents(placement, rules, seed, 12, gate)

    placements = [device.open(rules, pages_needed(rules), HEIGHT, WIDTH) for _ in range(3)]
    threads = [threading.Thread(target=run, args=pair) for pair in enumerate(placements)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert max(device.batches) > 1
    assert sum(device.batches) == 3 * len(list(Rounds(rules, 12)))
    for seed in range(3):
        for one, other in zip(alone[seed], results[seed], strict=True):
            torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert device._pool.free_list.used == device._pool.unroped_free_list.used == 0
    device.close()


def test_a_stream_too_many_is_refused_and_its_place_is_free_again():
    dit, rules = tiny_dit(), StreamBatch(steps=2)
    device = device_for(dit, streams=2)
    first = device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    with pytest.raises(WavecoreError, match="room for one more stream"):
        device.open(rules, pages_needed(rules), HEIGHT, WIDTH)  # nothing is known of its cost yet
    device.controller.cost.observe(2, 0.001)
    second = device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    with pytest.raises(WavecoreError, match="got 2 at its limit"):
        device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    second.close()
    device.open(rules, pages_needed(rules), HEIGHT, WIDTH).close()
    first.close()
    device.close()
    with pytest.raises(WavecoreError, match="closed"):
        latents(first, rules, 0, 1)


def test_wrong_streams_are_named():
    dit = tiny_dit()
    with pytest.raises(UsageError, match="lengths"):
        SharedDevice(dit, BatchingController(), 1.0, 1.0)
    device = device_for(dit)
    rules = StreamBatch(steps=2)
    device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    device.controller.cost.observe(2, 0.001)
    with pytest.raises(UsageError, match="size"):
        device.open(rules, pages_needed(rules), 2 * HEIGHT, WIDTH)
    device.close()


def test_a_pass_takes_until_the_device_has_done_it(monkeypatch):
    """A GPU is given a pass in a moment, and is at work on it long after."""
    dit, rules, now, waits = tiny_dit(), StreamBatch(steps=2), [1], []

    def wait_for(where):
        waits.append(where)
        now[0] += 5 * 10**9

    monkeypatch.setattr("wavecore.placement.device.wait_for", wait_for)
    controller = BatchingController(BatchingSettings(lengths=(1,), max_batch=1, passes=2))
    device = SharedDevice(dit, controller, 30.0, 0, clock=lambda: now[0])
    latents(device.open(rules, pages_needed(rules), HEIGHT, WIDTH), rules, 0, 3)
    device.close()
    assert waits and set(waits) == {torch.device("cpu")}
    assert controller.cost.predict(2) >= 4


def test_a_fault_reaches_the_stream_that_waits():
    dit, rules = tiny_dit(), StreamBatch(steps=2)
    device = device_for(dit)
    placement = device.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    (round,) = (Rounds(rules, 1).__next__(),)
    placement.submit(round, {}, levels_of(2), {})
    with pytest.raises(KeyError):
        placement.collect()
    device.close()
