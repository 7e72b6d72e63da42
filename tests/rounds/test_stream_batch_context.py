"""Stream batches over a ring, with sinks that change and positions that stay bounded."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavecore.cache import FreePages, PageTable, pages_needed
from wavecore.errors import UsageError
from wavecore.rounds import Key, Rounds, StreamBatch


@pytest.mark.parametrize("lag", [1, 2, 3, 8])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_a_level_follows_the_one_before_it_after_the_lag(steps, lag):
    rules = StreamBatch(steps=steps, lag=lag)
    rounds = list(Rounds(rules, 10))
    assert len(rounds) == 10 + (steps - 1) * lag
    for round in rounds:
        assert {slot.chunk for slot in round.slots} == {
            round.index - slot.stage * lag for slot in round.slots
        }
    completes = [(r.index, r.completes) for r in rounds if r.completes is not None]
    assert completes == [(c + (steps - 1) * lag, c) for c in range(10)]


def test_the_context_of_a_row_does_not_depend_on_the_lag():
    def rows(lag):
        rules = StreamBatch(steps=3, lag=lag, position_limit=12)
        return {slot.key: slot.reads for round in Rounds(rules, 20) for slot in round.slots}

    assert rows(1) == rows(4)


class Pages:
    """Runs a page table beside the rounds."""

    def __init__(self, size):
        self.pages, self.unroped = FreePages("pages", size.pages), FreePages("un-roped", size.unroped_pages)
        self.table = PageTable(self.pages, self.unroped)

    def run(self, round):
        self.table.begin(round)
        for slot in round.slots:
            assert len(self.table.read_ids(slot)) == sum(read.frames for read in slot.reads)
        self.table.end(round)


@given(
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(0, 3),
    st.sampled_from([None, 14]),
    st.lists(st.integers(0, 5), max_size=25),
)
@settings(max_examples=40, deadline=None)
def test_sinks_may_be_replaced_after_any_round(steps, lag, history, anchors, limit, choices):
    rules = StreamBatch(
        steps=steps, lag=lag, history=history, anchor_chunks=anchors, position_limit=limit, moving_sinks=True
    )
    pages, rounds = Pages(pages_needed(rules)), Rounds(rules)
    for choice in choices:
        round = next(rounds)
        pages.run(round)
        sinks = list(rounds.rules._sinks())
        if choice < len(sinks) and round.completes is not None and round.completes >= anchors:
            sinks[choice] = round.completes
            rounds.rules, orphans = rounds.rules.replace_sinks(sinks, rounds.index)
            assert all(key in pages.table for key in orphans)
            pages.table.drop(orphans)
            for slot in rounds.rules.round(rounds.index).slots:
                assert {read.key.chunk for read in slot.reads} >= {c for c in sinks if c < slot.chunk}
    pages.table.close()
    assert pages.pages.used == pages.unroped.used == 0


@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 4),
    st.integers(0, 3),
    st.sampled_from([None, 40]),
    st.booleans(),
    st.lists(st.tuples(st.integers(1, 3), st.booleans(), st.integers(0, 5)), min_size=1, max_size=40),
)
@settings(max_examples=60, deadline=None)
def test_chunks_may_change_their_length_before_any_round(steps, lag, history, anchors, limit, moving, script):
    """The same context in latents, positions one after the other, never a page too few."""
    rules = StreamBatch(
        steps=steps,
        lag=lag,
        history=history,
        anchor_chunks=anchors,
        first_chunk_frames=1,
        longest_chunk_frames=3,
        position_limit=limit,
        moving_sinks=moving,
    )
    pages, rounds, lengths = Pages(pages_needed(rules)), Rounds(rules), []
    for frames, held, choice in script:
        rounds.rules = rounds.rules.resize(frames, rounds.index)
        if held:
            rounds.delay()
        entered = rounds.entered
        round = next(rounds)
        pages.run(round)
        if rounds.entered > entered:
            lengths.append(frames if lengths else 1)
        for slot in round.slots:
            assert slot.frames == lengths[slot.chunk]
            assert limit is None or slot.frame_start + slot.frames <= limit
            starts = {read.key.chunk: read.position for read in slot.reads}
            newer = [read for read in slot.reads if not read.anchor]
            for one, other in pairwise(newer):
                assert starts[one.key.chunk] + one.frames <= starts[other.key.chunk]
            near = [c for c in starts if c not in rounds.rules._sinks() and c != slot.chunk]
            if near and min(near) > 0 and min(near) - 1 not in rounds.rules._sinks():
                assert history <= sum(lengths[min(near) : slot.chunk]) < history + 3
        sinks = list(rounds.rules._sinks())
        if moving and choice < len(sinks) and round.completes is not None and round.completes >= anchors:
            sinks[choice] = round.completes
            rounds.rules, orphans = rounds.rules.replace_sinks(sinks, rounds.index)
            pages.table.drop(orphans)
    assert len(rounds.rules.resized) <= 4 * steps * lag + history + anchors + 8
    pages.table.close()
    assert pages.pages.used == pages.unroped.used == 0


def test_lengths_that_do_not_fit_are_named():
    with pytest.raises(UsageError, match="frames: expected 1 to 1, got 2"):
        StreamBatch(steps=1).resize(2, 3)
    with pytest.raises(UsageError, match="longest_chunk_frames"):
        StreamBatch(steps=1, chunk_frames=3, longest_chunk_frames=2)
    with pytest.raises(UsageError, match="longest_chunk_frames"):
        StreamBatch(steps=1, longest_chunk_frames=2, anchor_position="absolute")


def test_fixed_sinks_cannot_be_replaced():
    with pytest.raises(UsageError, match="moving_sinks"):
        StreamBatch(steps=1).replace_sinks((5, 6), 8)


@pytest.mark.parametrize("steps", [1, 2])
def test_bounded_positions_keep_every_distance_and_never_reach_the_limit(steps):
    free, bounded = StreamBatch(steps=steps), StreamBatch(steps=steps, position_limit=21)
    seen = set()
    for index in range(0, 6000, 7):
        for a, b in zip(free.round(index).slots, bounded.round(index).slots, strict=True):
            assert [read.key for read in a.reads] == [read.key for read in b.reads]
            offsets = [
                (a.frame_start - x.position, b.frame_start - y.position)
                for x, y in zip(a.reads, b.reads, strict=True)
            ]
            assert all(x == y for x, y in offsets)
            assert all(0 <= y < 6 for _, y in offsets), "within the window"
            assert all(0 <= read.position < 21 for read in b.reads)
            seen.add(b.frame_start)
    assert max(seen) == 20


def test_the_published_reset_comes_at_the_published_chunks():
    """Index 50 is chunk 49 (197 frames); then every 45 chunks, from index 5."""
    rules = StreamBatch(steps=1, position_limit=50, position_reset="published")
    starts = [rules.round(index).slots[0].frame_start for index in range(200)]
    resets = [index for index in range(1, 200) if starts[index] < starts[index - 1]]
    assert resets == [49, 94, 139, 184]
    assert {starts[index] for index in resets} == {5}
    before, after = rules.round(48).slots[0], rules.round(49).slots[0]
    assert [read.position for read in after.reads if read.key in {r.key for r in before.reads}] == [
        read.position for read in before.reads if read.key != Key(46, 0)
    ], "cached keys stay where they are"


def test_wrong_limits_are_named():
    with pytest.raises(UsageError, match="position_limit: expected at least 7"):
        StreamBatch(steps=1, position_limit=6)
    with pytest.raises(UsageError, match="position_limit"):
        StreamBatch(steps=1, position_limit=30, anchor_position="absolute")
    with pytest.raises(UsageError, match="position_reset"):
        StreamBatch(steps=1, position_limit=30, position_reset="never")
    with pytest.raises(UsageError, match="lag"):
        StreamBatch(steps=1, lag=0)
