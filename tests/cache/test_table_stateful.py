"""Sessions that come, run, branch and go on one pool, in any interleaving.

A shadow of the pool remembers what every page holds. Every read must find what the round names,
in its order; no page may serve two sessions; at the end all pages must be back.
"""

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from wavecore.cache import FreePages, PageTable, PoolExhausted
from wavecore.rounds import Sequential, StreamBatch, Wavefront

SMALL = st.integers(0, 3)
RETAIN = st.just(2)
RULES = st.one_of(
    st.builds(
        Wavefront,
        retain=RETAIN,
        steps=st.integers(1, 4),
        chunk_frames=st.integers(1, 2),
        first_chunk_frames=st.none() | st.integers(1, 3),
        history=SMALL,
        store_history=SMALL,
        history_rule=st.sampled_from(["fixed", "reference"]),
        anchor_chunks=st.integers(0, 2),
        anchor_position=st.sampled_from(["adjacent", "absolute", "reference"]),
    ),
    st.builds(
        Sequential,
        retain=RETAIN,
        steps=st.integers(1, 3),
        chunk_frames=st.integers(1, 2),
        history=SMALL,
        store_history=SMALL,
        anchor_chunks=st.integers(0, 2),
    ),
    st.builds(
        StreamBatch,
        retain=RETAIN,
        steps=st.integers(1, 3),
        history=SMALL,
        anchor_chunks=st.integers(0, 2),
        anchor_position=st.sampled_from(["adjacent", "absolute"]),
    ),
)


class Session:
    def __init__(self, name, rules, chunks, pages, unroped):
        self.name = name
        self.rules = rules
        self.chunks = chunks
        self.index = 0
        self.furthest = 0
        self.table = PageTable(pages, unroped)

    @property
    def over(self):
        return self.chunks is not None and self.index >= self.rules.count(self.chunks)


class Sessions(RuleBasedStateMachine):
    sessions = Bundle("sessions")

    def __init__(self):
        super().__init__()
        self.pages = FreePages("pages", 60, self._freed)
        self.unroped = FreePages("un-roped pages", 16, self._freed_unroped)
        self.holds = {}  # page -> (session, key, frame of the chunk, temporal position)
        self.holds_unroped = {}  # page -> (session, key, frame of the chunk)
        self.open = set()
        self.opened = 0

    def _freed(self, pages):
        for page in pages:
            self.holds.pop(page, None)

    def _freed_unroped(self, pages):
        for page in pages:
            self.holds_unroped.pop(page, None)

    @rule(target=sessions, rules=RULES, chunks=st.none() | st.integers(1, 9))
    def start(self, rules, chunks):
        self.opened += 1
        self.open.add(self.opened)
        return Session(self.opened, rules, chunks, self.pages, self.unroped)

    @rule(session=sessions, count=st.integers(1, 6))
    def run(self, session, count):
        for _ in range(count):
            if session.over or session.name not in self.open:
                return
            if not self._round(session):
                return

    def _round(self, session):
        round = session.rules.round(session.index, session.chunks)
        before = dict(self.holds), self.pages.used, self.unroped.used
        try:
            rotations = session.table.begin(round)
        except PoolExhausted:
            assert (self.holds, self.pages.used, self.unroped.used) == before
            return False
        for rotation in rotations:
            for frame, (source, page) in enumerate(zip(rotation.unroped, rotation.pages, strict=True)):
                name, key, source_frame = self.holds_unroped[source]
                assert (name, source_frame) == (session.name, frame)
                old = rotation.values_from[frame] if rotation.values_from else page
                assert self.holds[old][:3] == (name, key, frame)
                self.holds[page] = (name, key, frame, rotation.position + frame)
        for slot in round.slots:
            for frame, page in enumerate(session.table.write_ids(slot)):
                assert page not in self.holds
                self.holds[page] = (session.name, slot.key, frame, slot.frame_start + frame)
            if slot.keep_unroped:
                for frame, page in enumerate(session.table.unroped_ids(slot)):
                    assert page not in self.holds_unroped
                    self.holds_unroped[page] = (session.name, slot.key, frame)
        for slot in round.slots:
            found = [self.holds[page] for page in session.table.read_ids(slot)]
            assert found == [
                (session.name, read.key, frame, read.position + frame)
                for read in slot.reads
                for frame in range(read.frames)
            ]
        session.table.end(round)
        session.index += 1
        return True

    @rule(session=consumes(sessions))
    def close(self, session):
        if session.name in self.open:
            session.table.close()
            self.open.remove(session.name)

    @rule(session=sessions, back=st.integers(0, 2))
    def branch(self, session, back):
        """Drop a suffix that `retain` allows for, and go on from there, more than once too."""
        if session.name not in self.open:
            return
        entered = session.rules.entered(session.index)
        entered = entered if session.chunks is None else min(entered, session.chunks)
        session.furthest = max(session.furthest, entered)
        chunk = min(entered, max(0, session.furthest - back))
        kept = {p: h for p, h in self.holds.items() if h[0] != session.name or h[1].chunk < chunk}
        session.table.drop_from(chunk)
        assert self.holds == kept
        session.rules = session.rules.branch(chunk, session.index)

    @invariant()
    def every_page_in_use_belongs_to_an_open_session(self):
        assert len(self.holds) == self.pages.used
        assert len(self.holds_unroped) == self.unroped.used
        assert {name for name, *_ in self.holds.values()} <= self.open


TestSessions = Sessions.TestCase
TestSessions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
