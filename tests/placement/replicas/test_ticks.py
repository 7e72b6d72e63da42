"""When ticks begin, and how many ranks there are."""

import pytest

from wavecore.placement.replica_options import ReplicaOptions
from wavecore.placement.ticks import Ticks


class Session:
    """Streams that let chunks enter, and the ticks that ranks are told of."""

    def __init__(self, steps):
        self.told = []
        self.ticks = Ticks(steps, lambda: self.told.append(None))

    def enter(self, chunk):
        with self.ticks.entering() as tick:
            self.told.append(chunk)
            assert tick == len(self.told)

    def leave(self):
        with self.ticks.leaving():
            pass


def test_a_stream_drains_as_ranks_ask():
    session = Session(steps=3)
    session.enter("a0")
    session.enter("a1")
    session.ticks.wanted(3)
    assert session.told == ["a0", "a1"], "more may enter"
    session.leave()
    assert session.told == ["a0", "a1", None], "somebody waits"
    session.ticks.wanted(3)
    assert len(session.told) == 3, "it has been told"
    for tick in (4, 5, 6, 7):
        session.ticks.wanted(tick)
    assert session.told == ["a0", "a1", None, None, None], "the last chunk is stored in tick 5"


def test_a_stream_that_comes_in_time_leaves_no_tick_without_a_chunk():
    session = Session(steps=3)
    session.enter("a0")
    session.leave()
    session.enter("b0")
    session.ticks.wanted(2)  # said before the second chunk was there
    session.ticks.wanted(3)
    assert session.told == ["a0", "b0"]
    assert session.ticks.entered == 2


def test_a_stream_that_comes_late_goes_on_after_those_ticks():
    session = Session(steps=3)
    session.enter("a0")
    session.leave()
    session.ticks.wanted(2)
    session.enter("b0")
    session.leave()
    for tick in range(3, 9):
        session.ticks.wanted(tick)
    assert session.told == ["a0", None, "b0", None, None, None]


@pytest.mark.parametrize(("cores", "ranks"), [((0,), 1), ((0, 1), 2), ((0, 1, 0, 1), 2), (range(8), 5)])
def test_a_rank_a_stage_where_there_are_as_many_cores_else_a_rank_a_core(cores, ranks):
    options = ReplicaOptions(cores=tuple(cores))
    assert options.stage_map(5).ranks == ranks
    assert options.spin_us(ranks) > 0


def test_ranks_that_are_asked_for(monkeypatch):
    assert ReplicaOptions(ranks=3, cores=(0, 1)).stage_map(5).ranks == 3
    assert ReplicaOptions(ranks=3, cores=(0, 1)).spin_us(3) == 0
    assert ReplicaOptions(ranks=[[4, 0], [1, 2, 3]]).stage_map(5).groups == ((0, 4), (1, 2, 3))
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert ReplicaOptions(launch="torchrun").stage_map(5).ranks == 4
