"""Free lists, page tables and pool sizes."""

import pytest

from wavecore.cache import FreePages, PageTable, PoolExhausted, PoolSize, pages_needed, pages_used
from wavecore.errors import WavecoreError
from wavecore.rounds import Key, Sequential, StreamBatch, Wavefront, chunk_major, wavefront


def table(pages=None, unroped=None):
    return PageTable(FreePages("pages", pages), FreePages("un-roped pages", unroped))


def test_allocate_gives_distinct_pages_and_all_or_nothing():
    free = FreePages("pages", 4)
    first = free.allocate(3)
    assert len(set(first)) == 3
    with pytest.raises(PoolExhausted, match="pages: expected 2 free, got 1 of 4"):
        free.allocate(2)
    assert free.used == 3
    free.free(first)
    assert sorted(free.allocate(4)) == [0, 1, 2, 3]
    assert free.peak == 4


@pytest.mark.parametrize("pages", [[1], [7]])
def test_double_free_is_an_error(pages):
    free = FreePages("pages", 4)
    free.free(free.allocate(4))
    with pytest.raises(WavecoreError, match="expected a page in use to free"):
        free.free(pages)


@pytest.mark.parametrize(
    ("rules", "chunks", "expected"),
    [
        # In flight 4, live store 1, store history 5, anchor at two positions.
        (Wavefront(steps=4), None, PoolSize(12 * 3, 3)),
        (Wavefront(steps=5), None, PoolSize(13 * 3, 3)),
        (Wavefront(steps=4, anchor_chunks=0), None, PoolSize(10 * 3, 0)),
        (Wavefront(steps=4, anchor_position="absolute"), None, PoolSize(11 * 3, 0)),
        # Two slots of the same history see the anchor at the same position.
        (Wavefront(steps=4, store_history=2), None, PoolSize((4 + 1 + 2 + 1) * 3, 3)),
        # Chunk 0 in flight alone: it is released before it is stored.
        (Wavefront(steps=4), 1, PoolSize(3, 3)),
        (Sequential(steps=4), None, PoolSize(7 * 3, 3)),
        # Every row: two sink chunks (3 latents), two before, itself.
        (StreamBatch(steps=2, anchor_position="absolute"), None, PoolSize(2 * 6, 0)),
        (StreamBatch(steps=3), None, PoolSize(3 * 6, 3 * 3)),
    ],
)
def test_pages_needed(rules, chunks, expected):
    assert pages_needed(rules, chunks) == expected


@pytest.mark.parametrize(
    "rules",
    [
        Wavefront(steps=1),
        Wavefront(steps=4, history_rule="reference", anchor_position="reference"),
        Wavefront(steps=3, history=0, store_history=0, anchor_chunks=3, first_chunk_frames=5),
        Sequential(steps=2, history=0, store_history=2),
        StreamBatch(steps=4, history=0, anchor_chunks=0),
        StreamBatch(steps=4, history=5, anchor_chunks=3),
        Sequential(steps=2, anchor_chunks=0, history=1, store_history=1, first_chunk_frames=1),
        StreamBatch(steps=1, anchor_chunks=0, chunk_frames=3, first_chunk_frames=1),
    ],
)
def test_pages_needed_is_exact_for_any_length(rules):
    long = pages_used(rules.round(index) for index in range(rules.count(60)))
    assert pages_needed(rules) == long
    ended = pages_used(rules.round(index, 30) for index in range(rules.count(30)))
    assert ended.pages <= long.pages


def test_pages_of_a_very_long_stream_are_known_at_once():
    rules = Wavefront(steps=4, history_rule="reference")
    assert pages_needed(rules, 10**12) == pages_needed(rules)


def test_chunk_major_holds_what_is_read_later():
    assert pages_used(chunk_major(wavefront(4, 8))).pages > pages_used(wavefront(4, 8)).pages


def test_too_small_a_pool_changes_nothing():
    rules = Wavefront(steps=4)
    size = pages_needed(rules)
    for pages, unroped in [(size.pages - 1, size.unroped_pages), (size.pages, size.unroped_pages - 1)]:
        small = PageTable(free := FreePages("pages", pages), other := FreePages("un-roped pages", unroped))
        with pytest.raises(PoolExhausted, match=r"pages: expected \d+ free, got \d+ of \d+"):
            for index in range(30):
                before = free.used, other.used
                round = rules.round(index)
                small.begin(round)
                small.end(round)
        assert (free.used, other.used) == before
        assert not any(slot.key in small for slot in round.slots)


def test_read_of_what_is_not_there_names_it():
    pages = table()
    with pytest.raises(WavecoreError, match="expected chunk 0 stage 4 for round 6, got none"):
        pages.begin(Wavefront(steps=4).round(6))


def test_a_chunk_is_written_once():
    pages = table()
    round = Wavefront(steps=4).round(0)
    pages.begin(round)
    with pytest.raises(WavecoreError, match="expected chunk 0 stage 0 to be written once"):
        pages.begin(round)


def test_drop_from_forgets_that_chunk_and_later_ones():
    pages = table()
    for round in list(wavefront(2, 6))[:5]:
        pages.begin(round)
        pages.end(round)
    assert Key(1, 2) in pages
    assert Key(2, 2) in pages
    pages.drop_from(2)
    assert Key(1, 2) in pages
    assert Key(2, 2) not in pages


def test_an_anchor_that_moves_is_turned_in_place():
    pages = table()
    rules = Wavefront(steps=1, history=1, store_history=1)
    turned = []
    for index in range(8):
        round = rules.round(index)
        turned += pages.begin(round)
        pages.end(round)
    assert [rotation.position for rotation in turned] == [3, 6, 9, 12]
    assert len({tuple(rotation.pages) for rotation in turned}) == 1
    assert all(rotation.values_from is None for rotation in turned)
