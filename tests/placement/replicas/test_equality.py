"""Stages over processes give the bits of one device, slot by slot: a process a stage, and fewer."""

from itertools import pairwise

import pytest
import torch
from support.models import levels_of, run_stream, text_features
from support.replicas import LATENT, drive, sent_bytes

from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.rounds import Wavefront, wavefront

MODES = [(mode, transport) for transport in ("shared", "gloo") for mode in ("paged", "early", "sync")]
CHUNKS = 8


@pytest.fixture(scope="module")
def local(dit):
    """Latents of one device, by steps."""
    return {
        steps: run_stream(dit, wavefront(steps, CHUNKS), levels_of(steps), "slots")[0]
        for steps in (1, 2, 4, 5)
    }


@pytest.mark.parametrize(("mode", "transport"), MODES)
@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_latents_are_those_of_one_device_slot_by_slot(dit, nursery, local, steps, mode, transport):
    options = ReplicaOptions(ranks=steps + 1, mode=mode, transport=transport, timeout=30)
    rules = Wavefront(steps=steps)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        latents = drive(replicas, dit, rules, CHUNKS)
        assert all(map(torch.equal, latents, local[steps]))
        # In each round with both ends at work, every edge carries keys and values once a layer, nothing more.
        frame = 2 * 6 * dit.config.dim * 4
        edges = sum(len(rules.round(i, CHUNKS).edges()) for i in range(rules.count(CHUNKS)))
        expected = edges * dit.config.layers * rules.chunk_frames * frame
        assert sum(sent_bytes(replicas, 0).values()) == expected


SHARED = [2, 3, ((0, 4), (1, 2, 3)), ((0, 2), (1,), (3, 4))]


@pytest.mark.parametrize("ranks", SHARED, ids=str)
@pytest.mark.parametrize(
    ("mode", "transport"),
    [
        pytest.param(
            *each, marks=() if each in (("paged", "shared"), ("early", "gloo")) else pytest.mark.slow
        )
        for each in MODES
    ],
)
def test_fewer_ranks_than_stages_give_the_same(dit, nursery, local, ranks, mode, transport):
    options = ReplicaOptions(ranks=ranks, mode=mode, transport=transport, timeout=30)
    rules = Wavefront(steps=4)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert len(replicas.pids) == (ranks if isinstance(ranks, int) else len(ranks))
        assert all(map(torch.equal, drive(replicas, dit, rules, CHUNKS), local[4]))
        # Nothing is sent to a rank that has it: each slot goes to another rank once at most.
        frame = 2 * 6 * dit.config.dim * 4
        most = (len(replicas.pids) - 1) * 5 * CHUNKS * dit.config.layers * rules.chunk_frames * frame
        assert 0 < sum(sent_bytes(replicas, 0).values()) <= most


@pytest.mark.parametrize("steps", [1, 2])
def test_one_rank_has_all_stages(dit, nursery, local, steps):
    rules = Wavefront(steps=steps)
    with Replicas(dit, rules, LATENT, ReplicaOptions(ranks=1, timeout=30), nursery=nursery) as replicas:
        assert all(map(torch.equal, drive(replicas, dit, rules, CHUNKS), local[steps]))
        assert sum(sent_bytes(replicas, 0).values()) == 0


@pytest.mark.parametrize("mode", ["paged", "early"])
@pytest.mark.parametrize("ranks", [2, ((0, 4), (1, 2, 3))], ids=str)
def test_fewer_ranks_with_one_generation_of_pages(dit, nursery, local, mode, ranks):
    options = ReplicaOptions(ranks=ranks, mode=mode, generations=1, timeout=30)
    rules = Wavefront(steps=4)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert all(map(torch.equal, drive(replicas, dit, rules, CHUNKS), local[4]))


@pytest.mark.parametrize("mode", ["paged", "early"])
def test_one_generation_of_pages_is_enough(dit, nursery, local, mode):
    options = ReplicaOptions(ranks=5, mode=mode, generations=1, timeout=30)
    rules = Wavefront(steps=4)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert [layout.pool.pages / 3 for layout in replicas.layouts] == [8, 7, 6, 5, 7]
        assert all(map(torch.equal, drive(replicas, dit, rules, CHUNKS), local[4]))


@pytest.mark.parametrize(
    "rules",
    [
        {"anchor_chunks": 0, "history": 1, "store_history": 2},
        {"anchor_position": "reference", "history_rule": "reference"},
        {"anchor_chunks": 2, "history": 0},
        {"first_chunk_frames": 2, "chunk_frames": 1},
    ],
)
@pytest.mark.parametrize("ranks", [5, 2])
def test_other_rules(dit, nursery, rules, ranks):
    rules = Wavefront(steps=4, **rules)
    expected, _ = run_stream(dit, wavefront(4, 10, **_parameters(rules)), levels_of(4), "slots")
    options = ReplicaOptions(ranks=ranks, timeout=30)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert all(map(torch.equal, drive(replicas, dit, rules, 10), expected))


def _parameters(rules):
    names = ("anchor_chunks", "history", "store_history", "anchor_position", "history_rule", "window")
    return {name: getattr(rules, name) for name in (*names, "first_chunk_frames", "chunk_frames")}


@pytest.mark.parametrize("ranks", [3, 2, ((0, 2), (1,))], ids=str)
def test_streams_follow_each_other_without_a_gap_and_without_a_trace_of_the_one_before(dit, nursery, ranks):
    rules = Wavefront(steps=2)
    texts = [dit.encode_text(text_features(prompt)) for prompt in range(3)]
    options = ReplicaOptions(ranks=ranks, timeout=30)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        streams = [
            replicas.stream(rules, levels_of(2), seed, chunks) for seed, chunks in enumerate((1, 4, 2, 9))
        ]
        results = [[] for _ in streams]
        while not all(stream.over for stream in streams):
            for stream, result in zip(streams, results, strict=True):
                while stream.wants_chunk:
                    stream.enter(0, texts[0])
                if not stream.over and (taken := stream.take(wait=False)) is not None:
                    result.append(taken[1])
        first = [stream.first_tick for stream in streams]
    apart = [b - a for a, b in pairwise(first)]
    assert all(0 <= more - chunks <= 1 for more, chunks in zip(apart, (1, 4, 2), strict=True)), (
        "one idle round"
    )
    for seed, (stream, result) in enumerate(zip(streams, results, strict=True)):
        expected, _ = run_stream(dit, wavefront(2, stream.chunks), levels_of(2), "slots", seed=seed)
        assert all(map(torch.equal, result, expected))


def test_prompts_change_where_a_chunk_enters_under_another(dit, nursery):
    rules = Wavefront(steps=2)
    with Replicas(dit, rules, LATENT, ReplicaOptions(timeout=30), nursery=nursery) as replicas:
        one = drive(replicas, dit, rules, 8, prompts=1)
        two = drive(replicas, dit, rules, 8, prompts=2)
    same = list(map(torch.equal, one, two))
    assert same == [True] * 4 + [False] * 4  # a chunk reads itself and older ones only


def test_a_stream_ends_where_it_is_told_to(dit, nursery):
    rules = Wavefront(steps=4)
    expected, _ = run_stream(dit, wavefront(4, 7), levels_of(4), "slots")
    text = dit.encode_text(text_features())
    with Replicas(dit, rules, LATENT, ReplicaOptions(timeout=30), nursery=nursery) as replicas:
        stream = replicas.stream(rules, levels_of(4), 0)
        latents = []
        while not stream.over:
            while stream.wants_chunk:
                if stream.entered == 7:
                    stream.end()
                else:
                    stream.enter(0, text)
            if (taken := stream.take()) is not None:
                latents.append(taken[1])
    assert all(map(torch.equal, latents, expected)) and len(latents) == 7


def test_a_stream_that_is_given_up_leaves_the_next_one_alone(dit, nursery):
    rules = Wavefront(steps=2)
    text = dit.encode_text(text_features())
    with Replicas(dit, rules, LATENT, ReplicaOptions(timeout=30), nursery=nursery) as replicas:
        endless = replicas.stream(rules, levels_of(2), 7)
        endless.enter(0, text)
        endless.enter(0, text)
        endless.close()
        expected, _ = run_stream(dit, wavefront(2, 4), levels_of(2), "slots")
        assert all(map(torch.equal, drive(replicas, dit, rules, 4), expected))
