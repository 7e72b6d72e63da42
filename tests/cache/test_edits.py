"""Edits: the same ones give the same table, and nothing is lost on a shelf."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from wavecore.cache import FreePages, PageTable
from wavecore.cache.edits import Edit, Edits
from wavecore.rounds import CallRules, Key

RULES = CallRules(steps=2, order="wavefront", history=6, store_history=6, anchor=True)


class Stream:
    """A table, the chunks that are stored in it, and the shelf that can be restored."""

    def __init__(self):
        self.free, self.unroped = FreePages("pages", 200), FreePages("un-roped pages", 20)
        self.table = PageTable(self.free, self.unroped)
        self.edits = Edits(self.table)
        self.pieces, self.end, self.shelf, self.shelves = [], 0, None, 0

    def apply(self, action, *numbers):
        self.edits.apply([Edit(action, numbers)], RULES.steps)

    def call(self, latents):
        for round in RULES.rounds(self.pieces, self.end, latents):
            self.table.begin(round)
            self.table.end(round)
            self.pieces += RULES.stored(round)
        self.end += latents

    def cut(self, position):
        self.shelves += 1
        self.apply("cut", position, self.shelves)
        if self.shelf is not None:
            self.apply("discard", self.shelf[0])
        self.shelf = self.shelves, self.pieces, self.end, position
        self.pieces = [p._replace(frames=min(p.frames, position - p.start)) for p in self.pieces]
        self.pieces = [p for p in self.pieces if p.frames > 0]
        self.end = position

    def restore(self):
        shelf, pieces, end, position = self.shelf
        self.shelves += 1
        self.apply("cut", position, self.shelves)
        self.apply("discard", self.shelves)
        self.apply("restore", shelf)
        self.pieces, self.end, self.shelf = pieces, end, None


@given(
    st.lists(st.tuples(st.sampled_from(["call", "cut", "restore", "keep"]), st.integers(1, 6)), max_size=8)
)
def test_two_tables_under_the_same_edits_are_one_and_lose_no_page(steps):
    first, second = Stream(), Stream()
    for action, number in steps:
        for stream in (first, second):
            if action == "call":
                stream.call(number)
            elif action == "cut" and stream.end:
                stream.cut(max(stream.end - number, 1))
            elif action == "restore" and stream.shelf is not None:
                stream.restore()
            elif action == "keep":
                stream.apply("keep", *(piece.start for piece in stream.pieces))
        assert first.table.used() == second.table.used()
        held = sum(piece.frames for piece in first.pieces)
        copies = first.free.used - held - (0 if first.shelf is None else first.shelf[2] - first.shelf[3])
        assert copies >= 0, "each latent that is stored or shelved has a page; an anchor may have several"
        assert {key.chunk for key in first.table} == {piece.start for piece in first.pieces}
        for piece in first.pieces:
            copies = first.table._pages[Key(piece.start, RULES.steps)].values()
            assert {len(pages) for pages in copies} == {piece.frames}
    if first.shelf is not None:
        first.apply("discard", first.shelf[0])
    first.apply("drop", *(piece.start for piece in first.pieces))
    assert (first.free.used, first.unroped.used) == (0, 0)
