"""The ring: the same bits as one process, for every number of ranks and steps."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import psutil
import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit
from support.ring import alone, around, rules_for, stream

from wavecore.cache import pages_needed
from wavecore.errors import UsageError, WavecoreError
from wavecore.placement import Handoff
from wavecore.placement.layers import Ring
from wavecore.placement.layers.processes import end_ranks, wait_for_ranks
from wavecore.rounds import Rounds, StreamBatch
from wavecore.trace import Trace

LAYERS = 8


def check(ring, dit, steps, chunks=12):
    ranks = ring.ranks
    rules = rules_for(ranks, steps, position_limit=14)
    expected = alone(dit, rules, chunks, steps, prompts=3)
    got, first = around(ring, rules, chunks, steps, prompts=3)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert first == steps * ranks


@pytest.fixture(scope="module")
def two():
    dit = tiny_dit(layers=LAYERS)
    with ring_of(dit, 2) as ring:
        yield ring, dit


def ring_of(dit, ranks, **more):
    return Ring(dit, ranks, **more)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_two_ranks_give_the_bits_of_one_process(two, steps):
    check(*two, steps)


def test_chunks_of_changing_length_go_around(two):
    """The public code's ring takes one latent a chunk, and a first chunk of five frames, only."""
    ring, dit = two
    rules = rules_for(2, 2, first_chunk_frames=1, longest_chunk_frames=3, position_limit=24)
    rounds, script = Rounds(rules), []
    for index in range(12):
        rounds.rules = rounds.rules.resize(1 + index % 3, rounds.index)
        script.append(next(rounds))
    rounds.finish()
    script += rounds
    expected = alone(dit, rules, 12, 2, rounds=script)
    got, _ = around(ring, rules, 12, 2, rounds=script)
    assert {latents.shape[1] for latents in got} == {1, 2, 3}
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [3, 4, 8])
def test_more_ranks_give_the_bits_of_one_process(ranks):
    dit = tiny_dit(layers=LAYERS)
    with ring_of(dit, ranks) as ring:
        for steps in (1, 2, 4):
            check(ring, dit, steps)


def test_one_rank_is_one_process():
    dit = tiny_dit(layers=2)
    with ring_of(dit, 1) as ring:
        check(ring, dit, 2)


def test_a_hop_takes_two_messages_and_texts_are_built_once(two):
    ring, _ = two
    rules = rules_for(2, 2)
    placement = ring.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    before, built, marks = ring.messages, ring._rank.shard.texts_built, []
    stream(placement, rules, 10, 2, each=lambda index: marks.append(index))
    rounds = len(marks)
    assert ring.messages - before == 2 * rounds + 1, "a header and a body a round, and the end of the stream"
    assert ring._rank.shard.texts_built - built == LAYERS // 2


def test_two_streams_share_a_ring(two):
    ring, dit = two
    rules = rules_for(2, 2)
    expected = [alone(dit, rules, 9, 2, seed=seed) for seed in (0, 1)]
    placements = [ring.open(rules, pages_needed(rules), HEIGHT, WIDTH) for _ in range(2)]
    handoffs = [Handoff(levels_of(2), seed, (4, HEIGHT, WIDTH)) for seed in (0, 1)]
    texts = [placement.encode_text(text_features()) for placement in placements]
    final = [[], []]
    flights = [[], []]
    for round in [*Rounds(rules, 9), None]:
        for i in range(2):
            if round is not None:
                text = {slot.chunk: texts[i] for slot in round.slots}
                placements[i].submit(round, handoffs[i].latents(round), handoffs[i].levels_of(round), text)
                flights[i].append(round)
            if len(flights[i]) == 2 or round is None:
                complete = handoffs[i].advance(flights[i].pop(0), placements[i].collect())
                final[i] += [] if complete is None else [complete]
    for placement in placements:
        placement.close()
    for one, other in zip(expected, final, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_moving_layers_changes_nothing_but_where_they_are(two):
    ring, dit = two
    rules = rules_for(2, 2, position_limit=14)
    expected = alone(dit, rules, 20, 2, prompts=2)
    before = ring._rank.bytes_moved
    splits = {4: (3, 5), 9: (6, 2), 13: (4, 4)}
    seen = []

    def each(index):
        seen.append(ring.split)
        if index in splits:
            ring.move(splits[index])

    got, _ = around(ring, rules, 20, 2, prompts=2, each=each)
    assert all(torch.equal(a, b) for a, b in zip(expected, got, strict=True))
    assert {(4, 4), (3, 5), (6, 2)} <= set(seen) and ring.split == (4, 4)
    layer = dit.layer(0)
    weights = sum(parameter.nbytes for parameter in layer.parameters())
    moved = ring._rank.bytes_moved - before  # rank 0 gave away 1 layer, then 2
    assert 3 * weights < moved
    pages = pages_needed(rules)
    tokens, heads, size = dit.tokens_per_frame(HEIGHT, WIDTH), dit.config.heads, dit.config.head_dim
    page = tokens * heads * size * 4
    most = 3 * (weights + (2 * pages.pages + pages.unroped_pages) * page)
    assert moved <= most + 3 * 64 * 40, "its weights and its pages in use, once"


def test_wrong_rings_are_named(two):
    ring, _ = two
    with pytest.raises(UsageError, match="devices: expected 1 to 2 ranks"):
        Ring(tiny_dit(layers=2), 3)
    with pytest.raises(UsageError, match="split"):
        ring.move((8, 0))
    rules = StreamBatch(steps=2)
    with pytest.raises(UsageError, match="lag of 2"):
        ring.open(rules, pages_needed(rules), HEIGHT, WIDTH)


def test_a_rank_holds_only_its_layers_and_a_killed_one_is_named():
    dit = tiny_dit(layers=LAYERS)
    ring = ring_of(dit, 2, keep=False)
    try:
        assert [layer for layer in range(LAYERS) if not next(dit.layer(layer).parameters()).is_meta] == [
            0,
            1,
            2,
            3,
        ]
        child = ring._processes[0].pid

        def each(index):
            if index == 5:
                os.kill(child, signal.SIGKILL)

        with pytest.raises(WavecoreError, match="ring: rank 1 was ended by signal 9"):
            around(ring, rules_for(2, 1), 50, 1, each=each)
    finally:
        ring.close()
    assert not psutil.pid_exists(child)


def test_a_rank_that_is_killed_before_it_has_come_is_named_at_once():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    over = threading.Event()
    try:
        process.kill()
        with pytest.raises(WavecoreError, match=r"^ring: rank 1 was ended by signal 9$"):
            wait_for_ranks([process], over.wait)  # as a rendezvous with a rank that never comes
    finally:
        over.set()
        end_ranks([process])


def test_a_ring_that_nobody_closed_leaves_no_thread_within_its_library_at_exit():
    ring = ring_of(tiny_dit(layers=2), 2)
    assert ring._receiver.is_alive() and ring._finalizer.atexit
    ring._finalizer()  # what the interpreter does first
    assert not ring._receiver.is_alive() and ring._processes[0].poll() is not None


def test_ranks_end_with_the_process_that_started_them():
    ring = ring_of(tiny_dit(layers=2), 2)
    child = psutil.Process(ring._processes[0].pid)
    ring._processes[0].stdin.close()  # what the end of this process does
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    ring.close()


def test_each_rank_stays_on_its_core():
    mine, dit = os.sched_getaffinity(0), tiny_dit(layers=2)
    cores = [min(mine), max(mine)]
    try:
        with ring_of(dit, 2, cores=cores) as ring:
            around(ring, rules_for(2, 1), 3, 1)
            ranks = [psutil.Process(), psutil.Process(ring._processes[0].pid)]
            assert [rank.cpu_affinity() for rank in ranks] == [[core] for core in cores]
            for thread in ranks[1].threads():
                assert os.sched_getaffinity(thread.id) == {cores[1]}
    finally:
        os.sched_setaffinity(0, mine)
    with pytest.raises(UsageError, match="cores: expected one for each of 2 ranks"):
        ring_of(dit, 2, cores=[0])


def test_the_log_tells_when_each_rank_ran_each_round():
    trace, dit = Trace(), tiny_dit(layers=3)
    began = trace.clock()
    with ring_of(dit, 3, trace=trace) as ring:
        around(ring, rules_for(3, 2), 4, 2)
    rounds = [event for event in trace.events if event.kind == "round"]
    count = len(list(Rounds(rules_for(3, 2), 4)))
    for rank in range(3):
        own = [event for event in rounds if event.track == f"rank {rank}"]
        assert [event.data["index"] for event in own] == list(range(count))
        assert all(a.time + a.duration <= b.time for a, b in pairwise(own)), "one at a time"
    for index in range(count):
        of_one = sorted((e for e in rounds if e.data["index"] == index), key=lambda e: e.time)
        assert [event.track for event in of_one] == ["rank 0", "rank 1", "rank 2"]
    assert all(began < event.time < trace.clock() for event in rounds)
    assert rounds[0].data["slots"] == {"0": 0}


def test_a_ring_that_was_interrupted_within_a_message_ends_without_a_word(monkeypatch):
    """The next rank waits for the rest of it, and would take no other."""

    def interrupt(size):
        raise KeyboardInterrupt

    rules = rules_for(2, 2)
    ring = ring_of(tiny_dit(layers=LAYERS), 2)
    placement = ring.open(rules, pages_needed(rules), HEIGHT, WIDTH)
    monkeypatch.setattr(ring._rank.channel._pool, "take", interrupt)  # a header is sent, its body is not
    with pytest.raises(KeyboardInterrupt):
        stream(placement, rules, 4, 2)
    monkeypatch.undo()
    said = []
    monkeypatch.setattr(ring._rank.channel, "send", lambda *message: said.append(message))
    with pytest.raises(WavecoreError, match="ring: it was interrupted in the middle of a message"):
        stream(placement, rules, 4, 2)
    ring.close()
    assert not said and all(process.poll() is not None for process in ring._processes)
