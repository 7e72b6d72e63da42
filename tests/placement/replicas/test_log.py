"""The event log of a run over replicas, whatever carries its messages."""

import pytest
from support.replicas import LATENT, drive, sent_bytes

from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.rounds import Wavefront
from wavecore.trace import Trace, exposed_waits


@pytest.mark.parametrize("transport", ["shared", "gloo"])
def test_every_publication_wait_and_attention_is_logged(dit, nursery, transport):
    rules, chunks, layers = Wavefront(steps=2), 4, dit.config.layers
    trace = Trace(limit=100_000)
    options = ReplicaOptions(ranks=3, transport=transport, mode="early", timeout=30)
    with Replicas(dit, rules, LATENT, options, trace, nursery) as replicas:
        drive(replicas, dit, rules, chunks)
        sent_bytes(replicas, 0)  # the store is through too
    events = trace.events
    edges = [
        (b.stage, a.stage)
        for i in range(rules.count(chunks))
        for a in rules.round(i, chunks).slots
        for b in rules.round(i, chunks).slots
        if b.stage > a.stage
    ]
    published = [tuple(event.data["edge"]) for event in events if event.kind == "publish"]
    waited = [tuple(event.data["edge"]) for event in events if event.kind == "wait"]
    assert sorted(published) == sorted(waited) == sorted(edge for edge in edges for _ in range(layers))
    # The store pass has nothing to attend to in the last layer, but passes by.
    attended = dict.fromkeys(range(3), 0)
    for event in events:
        if event.kind == "attend":
            attended[int(event.track.split()[1])] += 1
    assert attended == dict.fromkeys(range(3), chunks * layers)
    assert all(event.data["exposed"] >= 0 for event in events if event.kind == "wait")
    assert set(exposed_waits(events)) == set(edges)
