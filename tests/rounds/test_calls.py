"""Rounds of one call: what is made, read, stored and released, from any position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.cache import FreePages, PageTable
from wavecore.errors import UsageError
from wavecore.rounds import Key
from wavecore.rounds.calls import CallRules, Piece

RULES = st.builds(
    CallRules,
    steps=st.integers(1, 4),
    order=st.sampled_from(["sequential", "wavefront"]),
    chunk_frames=st.integers(1, 4),
    history=st.integers(0, 8),
    store_history=st.integers(0, 8),
    anchor=st.booleans(),
    first_alone=st.booleans(),
)


def prefix_of(rules, position):
    """A prefix with one short chunk in it, as a branch leaves it."""
    pieces, start = [], 0
    while start < position:
        frames = min(rules.chunk_frames if start != rules.chunk_frames else 1, position - start)
        pieces.append(Piece(start, frames))
        start += frames
    return pieces


def fill(table, rules, prefix):
    before = []
    for piece in prefix:
        for round in rules.prefill(before, piece.start, piece.frames):
            table.begin(round)
            table.end(round)
        before.append(piece)


@given(RULES, st.integers(0, 13), st.integers(1, 13))
def test_every_latent_passes_every_stage_and_is_stored(rules, position, latents):
    """A page table carries the rounds out: whatever is read is there, and nothing is left but clean pages."""
    table = PageTable(FreePages("pages"), FreePages("un-roped pages"))
    prefix = prefix_of(rules, position)
    fill(table, rules, prefix)
    completed, seen = [], []
    for index, round in enumerate(rules.rounds(prefix, position, latents)):
        assert round.index == index
        table.begin(round)
        for slot in round.slots:
            assert len(table.read_ids(slot)) == sum(read.frames for read in slot.reads)
            assert all(read.key.chunk <= slot.chunk for read in slot.reads)
        table.end(round)
        seen += [slot.key for slot in round.slots]
        completed += [] if round.completes is None else [round.completes]
    pieces = rules.pieces(position, latents)
    assert sorted(seen) == [Key(p.start, stage) for p in pieces for stage in range(rules.steps + 1)]
    assert completed == [p.start for p in pieces]
    assert {key.stage for key in table} == {rules.steps}
    assert sum(p.frames for p in pieces) == latents and pieces[-1].end == position + latents


@given(RULES, st.integers(0, 13), st.integers(1, 13))
def test_no_pass_reaches_further_back_than_it_may(rules, position, latents):
    for round in rules.rounds(prefix_of(rules, position), position, latents):
        for slot in round.slots:
            reads = [read for read in slot.reads if not read.anchor and read.key.stage == rules.steps]
            if rules.anchor:
                reads = [read for read in reads if read.key.chunk]
            assert all(slot.frame_start - read.key.chunk <= rules.reach + latents for read in reads)
            oldest = min((read.key.chunk for read in reads), default=position)
            assert oldest >= position - rules.reach or oldest >= position


def test_a_wave_takes_fewer_rounds_and_its_first_chunk_alone_as_few_passes_as_in_sequential_order():
    counts = {}
    for name, more in {
        "sequential": {"order": "sequential"},
        "wave": {"order": "wavefront"},
        "first alone": {"order": "wavefront", "first_alone": True},
    }.items():
        rounds = CallRules(steps=4, **more).rounds([], 0, 12)
        passes = 0
        for round in rounds:
            passes += len(round.slots)
            if round.completes == 0:
                break
        counts[name] = (len(rounds), passes)
    assert counts == {"sequential": (20, 4), "wave": (8, 10), "first alone": (11, 4)}


def test_the_last_store_may_be_left_out():
    for order in ("sequential", "wavefront"):
        rounds = CallRules(steps=2, order=order).rounds([], 0, 6, store=False)
        assert Key(3, 2) not in [slot.key for round in rounds for slot in round.slots]
        assert Key(0, 2) in [slot.key for round in rounds for slot in round.slots]


def test_a_cut_inside_a_chunk_keeps_the_pages_before_it_and_can_be_undone():
    pages = FreePages("pages", 12)
    table = PageTable(pages, FreePages("un-roped pages", 6))
    rules = CallRules(steps=1, anchor=True)
    fill(table, rules, [Piece(0, 3), Piece(3, 3), Piece(6, 3)])
    slot = rules.rounds([Piece(0, 3), Piece(3, 3), Piece(6, 3)], 9, 1)[0].slots[0]
    whole = [table._pages[read.key] for read in slot.reads[:-1]]
    before = {key: dict(copies) for key, copies in zip([r.key for r in slot.reads], whole, strict=False)}
    suffix = table.cut(4)
    assert sorted(table) == [Key(0, 1), Key(3, 1)] and pages.used == 9
    assert [len(p) for copies in suffix.pages.values() for p in copies.values()] == [2, 3]
    table.restore(suffix)
    assert {key: table._pages[key] for key in before} == before
    table.discard(table.cut(1))
    assert pages.used == 1
    assert list(table) == [Key(0, 1)] and len(table._unroped[Key(0, 1)]) == 1


@pytest.mark.parametrize("more", [{"steps": 0}, {"steps": 1, "chunk_frames": 0}, {"steps": 1, "history": -1}])
def test_wrong_values_are_named(more):
    with pytest.raises(UsageError, match=f"{list(more)[-1]}: expected at least"):
        CallRules(**more)
