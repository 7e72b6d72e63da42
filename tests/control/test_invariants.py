"""The eight invariants of the controller under random events; see `support.stream_world.World`."""

from __future__ import annotations

import pytest
from support.stream_machine import Machine, check


def test_invariants_hold():
    check(80, 30, database=None)


@pytest.mark.slow
def test_invariants_hold_in_many_sequences():
    Machine.events = Machine.sequences = Machine.cuts = Machine.kept = 0
    check(2_500, 60, database=None)  # 45 to 60 events come of a sequence
    print(f"{Machine.events} events in {Machine.sequences} sequences, {Machine.cuts} cuts")
    assert Machine.events >= 100_000
    assert Machine.sequences >= 1_000
    assert Machine.cuts >= 500 and Machine.kept >= 50, "waves are cut, also behind chunks in flight"
