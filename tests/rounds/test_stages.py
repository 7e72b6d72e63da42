"""What one stage of a wavefront holds."""

import pytest

from wavecore.cache import pages_used
from wavecore.errors import UsageError
from wavecore.rounds import Sequential, Stage, Wavefront


def chunks_held(rules, generations, chunks=20):
    stages = [Stage(rules, index, generations) for index in range(rules.steps + 1)]
    used = [pages_used(stage.round(i, chunks) for i in stage.span(chunks)) for stage in stages]
    return [size.pages / rules.chunk_frames for size in used]


def test_one_generation_is_what_the_context_needs():
    assert chunks_held(Wavefront(steps=4), 1) == [8, 7, 6, 5, 7]
    assert chunks_held(Wavefront(steps=5), 1)[0] == 8


def test_a_second_generation_is_what_is_written_in_a_round():
    """In flight at stage s of N = 4: 4 - s denoising slots, its own included, and the live store."""
    once, twice = (chunks_held(Wavefront(steps=4), generations) for generations in (1, 2))
    assert [b - a for a, b in zip(once, twice, strict=True)] == [5, 4, 3, 2, 1]


@pytest.mark.parametrize("steps", [1, 2, 4, 5])
@pytest.mark.parametrize("rule", ["fixed", "reference"])
@pytest.mark.parametrize("generations", [1, 2])
def test_a_stage_reads_what_the_whole_round_says_and_holds_it(steps, rule, generations):
    rules = Wavefront(steps=steps, history_rule=rule)
    for index in range(steps + 1):
        stage = Stage(rules, index, generations)
        rounds = [stage.round(i, 9) for i in stage.span(9)]
        pages_used(rounds)  # a read of what is not there would be an error
        for i, round in zip(stage.span(9), rounds, strict=True):
            whole = rules.round(i, 9)
            assert stage.own(round) == next(slot for slot in whole.slots if slot.stage == index)
            incoming = {(key.stage, index) for key in stage.incoming(round)}
            assert incoming == {edge for edge in whole.edges() if edge[1] == index}


def test_every_stage_together_has_the_edges_of_the_round():
    rules = Wavefront(steps=4)
    stages = [Stage(rules, index) for index in range(5)]
    assert sum(len(stage.incoming(stage.round(8))) for stage in stages) == 10


@pytest.mark.parametrize(
    ("rules", "index", "message"),
    [
        (Sequential(steps=4), 0, "rounds: expected wavefront"),
        (Wavefront(steps=4), 5, "stage: expected 0 to 4, got 5"),
        (Wavefront(steps=4).branch(3, 9), 0, "without branches"),
    ],
)
def test_what_cannot_be_split_is_an_error(rules, index, message):
    with pytest.raises(UsageError, match=message):
        Stage(rules, index)
