"""Stages on ranks: who computes what, and what it is sent."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.errors import UsageError
from wavecore.rounds import Sequential, Share, StageMap, Wavefront


@pytest.mark.parametrize("stages", range(1, 7))
def test_as_many_ranks_as_stages_have_one_each(stages):
    apart = StageMap(stages, stages)
    assert not apart.in_turn
    for tick in range(1, 9):
        assert [apart.rank(stage, tick) for stage in range(stages)] == list(range(stages))


@pytest.mark.parametrize(("stages", "ranks"), [(s, r) for s in range(1, 7) for r in range(1, s + 1)])
def test_ranks_that_take_turns_do_so_in_the_order_of_the_work(stages, ranks):
    """Cleanest first, tick after tick: every rank has every `ranks`-th slot, and so the same work."""
    turns = StageMap(stages, ranks)
    order = [turns.rank(stage, tick) for tick in range(1, 9) for stage in reversed(range(stages))]
    assert len({(rank + place) % ranks for place, rank in enumerate(order)}) == 1
    assert turns.in_turn == (stages % ranks != 0)
    for rank in range(ranks):
        computed = {stage for tick in range(9) for stage in range(stages) if turns.rank(stage, tick) == rank}
        assert computed == set(turns.stages_of(rank))


def test_names():
    assert [StageMap(3, 3).name(rank) for rank in range(3)] == [
        "rank 0 (stage 0)",
        "rank 1 (stage 1)",
        "rank 2 (store)",
    ]
    mixed = StageMap.of_groups([(3, 0), (2, 1)], 4)
    assert [mixed.name(rank) for rank in range(2)] == ["rank 0 (stage 0 and store)", "rank 1 (stages 1, 2)"]
    assert StageMap(5, 2).name(1) == "rank 1 (stages in turn)"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: StageMap(3, 4), "ranks: expected 1 to 3, one a stage and one for the store, got 4"),
        (lambda: StageMap(3, 0), "ranks: expected 1 to 3, one a stage and one for the store, got 0"),
        (
            lambda: StageMap.of_groups([(0,), (2,)], 3),
            "ranks: expected each stage from 0 to 2 once, got 0 | 2",
        ),
    ],
)
def test_ranks_that_cannot_share_the_stages(make, message):
    with pytest.raises(UsageError) as error:
        make()
    assert str(error.value) == message


@st.composite
def maps(draw, stages):
    """Any assignment of the stages to ranks."""
    if draw(st.booleans()):
        return StageMap(stages, draw(st.integers(1, stages)))
    of = draw(st.lists(st.integers(0, stages - 1), min_size=stages, max_size=stages))
    groups = [tuple(s for s in range(stages) if of[s] == rank) for rank in sorted(set(of))]
    return StageMap.of_groups(groups, stages)


@given(
    data=st.data(),
    steps=st.sampled_from([1, 2, 4, 5]),
    rule=st.sampled_from(["fixed", "reference"]),
    chunks=st.integers(1, 12),
    first=st.integers(1, 9),
)
def test_ranks_have_every_slot_once_and_what_it_reads(data, steps, rule, chunks, first):
    rules, map = Wavefront(steps=steps, history_rule=rule), data.draw(maps(steps + 1))
    shares = [Share(rules, map, rank) for rank in range(map.ranks)]
    held = [set() for _ in shares]
    for index in range(rules.count(chunks)):
        whole, tick = rules.round(index, chunks), first + index
        parts = [share.part(whole, tick, chunks) for share in shares]
        own = [share.own(part, tick) for share, part in zip(shares, parts, strict=True)]
        assert sorted(slot.stage for some in own for slot in some) == sorted(s.stage for s in whole.slots)
        for share, part, slots, keys in zip(shares, parts, own, held, strict=True):
            assert all(slot in whole.slots for slot in slots), "with the reads of the whole round"
            keys |= {slot.key for slot in part.slots}
            assert {read.key for slot in slots for read in slot.reads} <= keys
            keys -= set(part.releases)
            if map.ranks == steps + 1:
                (stage,) = map.stages_of(share.rank)
                sent = {(key.stage, stage) for key in share.incoming(part, tick)}
                assert sent == {edge for edge in whole.edges() if edge[1] == stage}, "nothing more"


def test_every_stage_together_has_the_edges_of_the_round():
    rules, apart = Wavefront(steps=4), StageMap(5, 5)
    shares = [Share(rules, apart, rank) for rank in range(5)]
    assert sum(len(s.incoming(s.part(rules.round(8), 9, None), 9)) for s in shares) == 10


@pytest.mark.parametrize(
    ("rules", "rank", "message"),
    [
        (Sequential(steps=4), 0, "rounds: expected wavefront"),
        (Wavefront(steps=4), 5, "rank: expected 0 to 4, got 5"),
        (Wavefront(steps=3), 0, "stages: expected 4, got 5"),
        (Wavefront(steps=4).branch(3, 9), 0, "without branches"),
    ],
)
def test_what_cannot_be_split_is_an_error(rules, rank, message):
    with pytest.raises(UsageError, match=message):
        Share(rules, StageMap(5, 5), rank)
