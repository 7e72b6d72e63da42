"""Transitions between prompts."""

from wavecore.control.streaming import transition_share


def test_shares_rise_evenly_to_the_new_prompt():
    assert [transition_share(index, 1) for index in range(2)] == [1, 1]
    assert [transition_share(index, 4) for index in range(6)] == [0.25, 0.5, 0.75, 1, 1, 1]
