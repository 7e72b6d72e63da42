"""StreamDiffusionV2 rounds: every level has a history of its own."""

import pytest

from wavecore.rounds import Key, StreamBatch, stream_batch


def latents(slot):
    """Latent frames a slot reads, oldest key first."""
    return [f for read in slot.reads for f in range(read.position, read.position + read.frames)]


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
def test_sinks_and_the_three_newest(steps):
    """KV of 6 latents, 3 of them sinks: the first chunk has latents 0 and 1, the second latent 2."""
    for r in stream_batch(steps, 30, anchor_position="absolute"):
        for slot in r.slots:
            assert all(read.key.stage == slot.stage for read in slot.reads)
            newest = slot.frame_start + slot.frames - 1
            expected = [*range(min(3, newest + 1)), *range(max(3, newest - 2), newest + 1)]
            assert latents(slot) == expected


def test_first_chunk_is_longer():
    rules = StreamBatch(steps=2)
    assert [rules.frames(c) for c in range(4)] == [2, 1, 1, 1]
    assert [rules.start(c) for c in range(4)] == [0, 2, 3, 4]


@pytest.mark.parametrize("first", [None, 1, 2, 5])
def test_chunks_are_just_enough_for_the_latent_frames(first):
    rules = StreamBatch(steps=2, chunk_frames=3, first_chunk_frames=first)
    for frames in range(1, 20):
        chunks = rules.chunks(frames)
        assert rules.start(chunks) >= frames
        assert chunks == 1 or rules.start(chunks - 1) < frames
    assert rules.chunks(10**12) > 10**11


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_flush_is_a_drain(steps):
    rounds = list(stream_batch(steps, 10))
    assert len(rounds) == 10 + steps - 1
    assert [r.completes for r in rounds] == [*[None] * (steps - 1), *range(10)]
    assert all(not r.edges() for r in rounds)


def test_release_keeps_what_is_read_later():
    live = set()
    for r in stream_batch(3, 20):
        for slot in r.slots:
            live.add(slot.key)
            assert {read.key for read in slot.reads} <= live
        live -= set(r.releases)
    assert live == {Key(c, s) for c in (0, 1, 18, 19) for s in range(3)}


def test_adjacent_sinks_stay_near():
    (slot,) = stream_batch(1, 500).rules.round(400).slots
    assert latents(slot) == [396, 397, 398, 399, 400, 401]
