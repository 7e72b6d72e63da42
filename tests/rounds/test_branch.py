"""Streams that branch: a chunk enters anew while older ones go on."""

import pytest

from wavecore.errors import UsageError
from wavecore.rounds import Key, Sequential, StreamBatch, Wavefront, sequential, wavefront

KINDS = [Wavefront(steps=3), Sequential(steps=3), StreamBatch(steps=3)]


def held(round):
    return [slot.key for slot in round.slots]


@pytest.mark.parametrize("rules", KINDS)
def test_entry_and_entered_agree(rules):
    """A stream that branches back, forward and back again: what has entered is what entry says."""
    branched = rules.branch(2, 15).branch(3, 21).branch(1, 30)
    assert branched.branches == ((1, 30),)
    twice = rules.branch(2, 15).branch(3, 25)
    assert twice.branches == ((2, 15), (3, 25))
    for each in (rules, branched, twice):
        assert [each.entry(c) for c in range(6)] == sorted(each.entry(c) for c in range(6))
        for index in range(60):
            assert each.entered(index) == sum(each.entry(c) < index for c in range(60))


@pytest.mark.parametrize("rules", KINDS)
def test_a_branch_at_the_next_chunk_and_round_changes_nothing(rules):
    index = rules.entry(4)
    branched = rules.branch(4, index)
    assert all(branched.round(t, 9) == rules.round(t, 9) for t in range(rules.count(9)))


def test_a_cut_wave_refills_while_older_chunks_go_on():
    """Cut at chunk 5 in round 8: chunk 4 keeps its stage, 5 to 7 are dropped."""
    rules = Wavefront(steps=4).branch(5, 8)
    assert held(rules.round(8)) == [Key(4, 4), Key(5, 0)]
    assert held(rules.round(9)) == [Key(5, 1), Key(6, 0)]
    assert held(rules.round(12)) == [Key(5, 4), Key(6, 3), Key(7, 2), Key(8, 1), Key(9, 0)]
    assert rules.round(11).completes == 5
    newest = rules.round(8).slots[-1]
    assert [read.key for read in newest.reads] == [*(Key(c, 4) for c in (0, 2, 3, 4)), Key(5, 0)]
    assert rules.count(8) == 8 + (8 - 5) + 4


def test_rounds_go_on_from_a_branch():
    rounds = wavefront(2, 6)
    before = [next(rounds) for _ in range(5)]
    rounds.branch(3)
    after = list(rounds)
    assert [r.completes for r in before] == [None, 0, 1, 2, 3]
    assert [r.index for r in after] == list(range(5, 10))
    assert [r.completes for r in after] == [None, 3, 4, 5, None]


def test_sequential_branch_restarts_the_chunk():
    rounds = sequential(2, 3)
    for _ in range(5):
        next(rounds)
    rounds.branch(1)
    assert [held(r) for r in rounds] == [[Key(c, s)] for c in (1, 2) for s in range(3)]


def test_sequential_branch_finishes_the_chunk_before():
    rounds = sequential(2, 3)
    first = [next(rounds), next(rounds)]
    rounds.branch(1)
    assert [held(r) for r in (*first, *rounds)] == [[Key(c, s)] for c in range(3) for s in range(3)]


@pytest.mark.parametrize("chunk", [-1, 6])
def test_a_chunk_that_has_not_entered_is_no_place_to_branch(chunk):
    with pytest.raises(UsageError, match="chunk: expected one of the 5 that have entered before round 5"):
        Wavefront(steps=4).branch(chunk, 5)


@pytest.mark.parametrize("rules", KINDS)
def test_retain_keeps_older_chunks(rules):
    kept = type(rules)(steps=3, retain=4)
    index = rules.entry(20) + rules.rounds_held() - 1
    oldest = [min(key.chunk for key in each.round(index).releases) for each in (rules, kept)]
    assert oldest[1] == oldest[0] - 4
