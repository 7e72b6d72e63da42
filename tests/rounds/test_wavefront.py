"""Wavefront rounds against the published round table and the rules it follows."""

import subprocess
import sys

import pytest

from wavecore.errors import UsageError
from wavecore.rounds import Key, Wavefront, chunk_major, round_major, table, wavefront

# N = 4 and the store, M = 8: chunk in s0..s3 and store, chunks read by s0..s3.
PUBLISHED = """
0  0 - - - -  1
1  1 0 - - -  2/1
2  2 1 0 - -  3/2/1
3  3 2 1 0 -  4/3/2/1
4  4 3 2 1 0  5/4/3/2
5  5 4 3 2 1  6/5/4/3
6  6 5 4 3 2  7/6/5/4
7  7 6 5 4 3  8/7/6/5
8  - 7 6 5 4  –/7/6/5
9  - - 7 6 5  –/–/6/5
10 - - - 7 6  –/–/–/5
11 - - - - 7  –
"""


def cells(row):
    return [cell.strip() for cell in str(row).strip("| ").split("|")]


def test_published_table():
    rounds = list(wavefront(4, 8))
    expected = [line.split() for line in PUBLISHED.strip().splitlines()]
    assert len(rounds) == len(expected) == 12
    for row, line in zip(rounds, expected, strict=True):
        index, *held, _phase, context = cells(row)
        assert [index, *(c or "-" for c in held), context] == line
    assert [cells(r)[-2] for r in rounds] == [
        *["fill"] * 4, *["steady"] * 3, "steady, full width", *["drain"] * 4
    ]  # fmt: skip


def test_a_table_of_no_round_is_an_error():
    with pytest.raises(UsageError, match="rounds: expected at least one, got none"):
        table(wavefront(4, 0))


def test_table_has_a_head_with_noise_levels():
    lines = table(wavefront(4, 8), [1, 0.9375, 0.83333, 0.625]).splitlines()
    assert len(lines) == 14
    assert lines[0].startswith("| t | s0 σ1 | s1 σ0.9375 | s2 σ0.8333 | s3 σ0.625 | store | phase |")
    assert {line.count("|") for line in lines} == {9}


@pytest.mark.parametrize(("steps", "edges"), [(1, 1), (2, 3), (4, 10), (5, 15)])
def test_edges_of_a_full_round(steps, edges):
    full = Wavefront(steps=steps).round(20)
    assert len(full.edges()) == edges
    assert all(source > target for source, target in full.edges())
    assert sum(source == steps for source, _ in full.edges()) == steps


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_counts_and_completion(steps):
    rounds = list(wavefront(steps, 8))
    assert len(rounds) == 8 + steps
    assert [r.completes for r in rounds] == [*[None] * (steps - 1), *range(8), None]


def test_context_order_at_full_width():
    slots = {slot.stage: slot for slot in Wavefront(steps=4).round(9).slots}
    assert [read.key for read in slots[1].reads] == [
        Key(0, 4), Key(3, 4), Key(4, 4), Key(5, 4), Key(8, 1), Key(7, 2), Key(6, 3)
    ]  # fmt: skip
    assert [read.key for read in slots[4].reads] == [Key(0, 4), *(Key(c, 4) for c in (1, 2, 3, 4, 5))]
    assert [slot.stage for slot in Wavefront(steps=4).round(9).slots] == [4, 3, 2, 1, 0]


def test_width_of_five_steps_is_eight_chunks_too():
    assert len(Wavefront(steps=5).round(20).slots[-1].reads) == 8


def test_fixed_history_does_not_depend_on_the_end():
    short, long, endless = (list(wavefront(4, m)) for m in (8, 12, 99))
    for t in range(12):
        known = {slot.key: slot for slot in short[t].slots}
        assert known == {s.key: s for s in long[t].slots if s.chunk < 8}
        assert known == {s.key: s for s in endless[t].slots if s.chunk < 8}


def test_reference_history_widens_while_it_drains():
    fixed, reference = (list(wavefront(4, 8, history_rule=rule)) for rule in ("fixed", "reference"))
    assert fixed[:8] == reference[:8]
    assert [cells(r)[-1] for r in reference[8:]] == ["–/8/7/6", "–/–/8/7", "–/–/–/8", "–"]


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
def test_adjacent_anchor_is_just_before_what_follows(steps):
    for r in wavefront(steps, 20):
        for slot in r.slots:
            anchor, *others = slot.reads
            if anchor.anchor:
                assert anchor.position + anchor.frames == min(read.position for read in others)


def test_adjacent_anchor_is_at_its_true_position_until_chunks_are_dropped():
    rounds = list(wavefront(4, 12))
    assert [r.slots[-1].reads[0].position for r in rounds[5:8]] == [0, 0, 0]
    assert rounds[8].slots[-1].reads[0].position == 3


def test_reference_anchor_overlaps_by_the_live_store():
    adjacent, reference = (wavefront(4, 12, anchor_position=p) for p in ("adjacent", "reference"))
    for r, q in zip(adjacent, reference, strict=True):
        for slot, other in zip(r.slots, q.slots, strict=True):
            if slot.reads[0].anchor:
                later = 0 if slot.stage == 4 else 3
                assert other.reads[0].position == slot.reads[0].position + later


def test_no_anchor():
    rounds = list(wavefront(4, 10, anchor_chunks=0))
    assert not any(read.anchor for r in rounds for slot in r.slots for read in slot.reads)
    assert [read.key for read in rounds[7].slots[-1].reads][:3] == [Key(1, 4), Key(2, 4), Key(3, 4)]
    assert not any(slot.keep_unroped for r in rounds for slot in r.slots)


def test_two_anchor_chunks_keep_their_distance():
    anchors = [read for read in Wavefront(steps=4, anchor_chunks=2).round(12).slots[-1].reads if read.anchor]
    assert [read.key.chunk for read in anchors] == [0, 1]
    assert anchors[1].position - anchors[0].position == 3


@pytest.mark.parametrize("options", [{}, {"history_rule": "reference"}, {"history": 7}, {"history": 0}])
@pytest.mark.parametrize("reorder", [list, round_major, chunk_major])
def test_no_read_before_the_write_or_after_the_release(reorder, options):
    live = set()
    for r in reorder(wavefront(4, 11, **options)):
        for slot in r.slots:
            live.add(slot.key)
            assert {read.key for read in slot.reads} <= live
        assert set(r.releases) <= live
        live -= set(r.releases)
    if reorder is not list:
        assert not live


def test_an_endless_stream_holds_a_bounded_number_of_chunks():
    live, sizes = set(), []
    rounds = wavefront(4)
    for _ in range(60):
        r = next(rounds)
        live |= {slot.key for slot in r.slots}
        sizes.append(len(live))
        live -= set(r.releases)
    assert max(sizes) == sizes[-1] == 4 + 1 + 5 + 1  # in flight, live store, store history, anchor


def test_end_fixed_later_equals_end_known_before():
    rounds = wavefront(4)
    first = [next(rounds) for _ in range(8)]
    rounds.finish()
    assert rounds.chunks == 8
    assert [r.slots for r in (*first, *rounds)] == [r.slots for r in wavefront(4, 8)]


def test_end_before_chunks_that_have_entered_is_refused():
    rounds = wavefront(4)
    next(rounds), next(rounds)
    with pytest.raises(UsageError, match="chunks: expected at least 2, got 1"):
        rounds.finish(1)


def test_chunk_major_runs_all_stages_of_a_chunk_before_the_next():
    order = [r.slots[0].key for r in chunk_major(wavefront(2, 3))]
    assert order == [Key(c, s) for c in range(3) for s in range(3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps: expected at least 1, got 0"),
        ({"steps": 4, "history": -1}, "history: expected at least 0"),
        ({"steps": 4, "anchor_position": "left"}, "anchor_position: expected one of adjacent, reference"),
        ({"steps": 4, "history_rule": "wide"}, "history_rule: expected fixed or reference"),
        ({"steps": 4, "chunks": -1}, "chunks: expected at least 0"),
    ],
)
def test_bad_parameters(options, message):
    with pytest.raises(UsageError, match=message):
        wavefront(**options)


def test_rounds_need_no_torch():
    code = "import sys, wavecore.rounds; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
