"""Self-Forcing rounds: clean history and itself only."""

import pytest

from wavecore.rounds import Key, Rules, Sequential, sequential


@pytest.mark.parametrize("steps", [1, 4])
def test_one_pass_a_round(steps):
    rounds = list(sequential(steps, 8))
    assert len(rounds) == 8 * (steps + 1)
    assert [r.slots[0].key for r in rounds] == [Key(c, s) for c in range(8) for s in range(steps + 1)]
    assert [r.completes for r in rounds if r.completes is not None] == list(range(8))
    assert all(len(r.slots) == 1 and not r.edges() for r in rounds)


def test_reads_clean_chunks_and_itself():
    for r in sequential(4, 12):
        (slot,) = r.slots
        *clean, own = slot.reads
        assert own.key == slot.key
        assert all(read.key.stage == 4 and read.key.chunk < slot.chunk for read in clean)
        assert len(slot.reads) <= 7


def test_context_of_a_late_chunk():
    (slot,) = Sequential(steps=4).round(10 * 5 + 1).slots
    assert [read.key for read in slot.reads] == [*(Key(c, 4) for c in (0, 5, 6, 7, 8, 9)), Key(10, 1)]
    assert slot.reads[0].position == 5 * 3 - 3


def test_release_keeps_what_is_read_later():
    live = set()
    for r in sequential(2, 15, history=3, store_history=1):
        for slot in r.slots:
            live.add(slot.key)
            assert {read.key for read in slot.reads} <= live
        live -= set(r.releases)
    assert live == {Key(c, 2) for c in (0, 12, 13, 14)}


def test_end_fixed_inside_a_chunk_finishes_that_chunk():
    rounds = sequential(4)
    for _ in range(6):
        next(rounds)
    rounds.finish()
    assert rounds.chunks == 2
    assert len(list(rounds)) == 4


def test_a_kind_of_rounds_that_lacks_a_part_cannot_be_made():
    class Unfinished(Rules):
        def rounds_held(self):
            return 1

    with pytest.raises(TypeError, match="abstract methods"):
        Unfinished(steps=2)
