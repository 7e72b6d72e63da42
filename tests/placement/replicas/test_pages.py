"""Pages of ranks: as many as the context needs, the same in every view, and never written while read."""

from collections import deque
from functools import lru_cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wavecore.placement.exchange import Job, PeerTable, RankPages, pool_sizes
from wavecore.rounds import StageMap, Wavefront

APART = StageMap(5, 5)


def chunks_held(map, generations):
    return [size.pages / 3 for size in pool_sizes(Wavefront(steps=4), map, generations)]


def test_one_generation_is_what_the_context_needs():
    assert chunks_held(APART, 1) == [8, 7, 6, 5, 7]
    assert pool_sizes(Wavefront(steps=5), StageMap(6, 6), 1)[0].pages == 24


def test_a_second_generation_is_what_is_written_in_a_round():
    """In flight at stage s of N = 4: 4 - s denoising slots, its own included, and the live store."""
    once, twice = chunks_held(APART, 1), chunks_held(APART, 2)
    assert [b - a for a, b in zip(once, twice, strict=True)] == [5, 4, 3, 2, 1]


MAPS = [
    StageMap(5, 5),
    StageMap(5, 2),
    StageMap(5, 3),
    StageMap(5, 1),
    StageMap.of_groups([(0, 4), (1, 2, 3)], 5),
    StageMap.of_groups([(1,), (0, 4), (2, 3)], 5),
]


@lru_cache
def sizes_of(map, generations):
    return pool_sizes(Wavefront(steps=4), map, generations)


@pytest.mark.parametrize("map", MAPS, ids=str)
@settings(max_examples=20)
@given(
    lengths=st.lists(st.sampled_from([1, 2, 3, 5, 8, 13]), min_size=1, max_size=4),
    idle=st.lists(st.integers(0, 6), min_size=4, max_size=4),
    generations=st.integers(1, 3),
)
def test_streams_one_after_the_other(map, lengths, idle, generations):
    """A rank and what another one keeps of it take the same pages, and nothing arrives where it reads."""
    rules = Wavefront(steps=4)
    sizes = sizes_of(map, generations)
    jobs, first = [], 1
    for length, wait in zip(lengths, idle, strict=False):
        jobs.append(Job(rules, map, first, length))
        first += length + wait
    last = max(job.first_tick + rules.count(job.chunks) for job in jobs)
    for rank, size in enumerate(sizes):
        own, seen = RankPages(size, generations), RankPages(size, generations)
        tables = [(job, own.table(), PeerTable(job, rank, seen)) for job in jobs]
        recent: deque[set[int]] = deque(
            maxlen=generations
        )  # what was read in the latest ticks, this one included
        for tick in range(1, last):
            own.turn()
            seen.turn()
            at_work = [t for t in tables if t[0].first_tick <= tick and not t[0].over(rank, tick - 1)]
            read: set[int] = set()
            for job, table, peer in at_work:
                part = job.part(rank, tick)
                table.begin(part)
                peer.begin(tick)
                mine = job.shares[rank].own(part, tick)
                read |= {page for slot in mine for page in table.read_ids(slot)}
                for slot in part.slots:
                    if slot in mine:
                        continue
                    pages = table.write_ids(slot)
                    assert pages == peer.target(slot).pages
                    # Others may write them once the rank is through with the tick `generations` ago.
                    assert not any(set(pages) & earlier for earlier in recent)
            recent.append(read)
            while len(recent) > generations - 1:
                recent.popleft()
            for job, table, peer in at_work:
                table.end(job.part(rank, tick))
                peer.end()
                if job.over(rank, tick):
                    table.close()
                    peer.close()
        assert own.pages.used <= size.pages
