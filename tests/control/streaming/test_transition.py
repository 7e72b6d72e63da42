"""Transitions between prompts."""

import pytest

from wavecore.control.streaming import transition_weights
from wavecore.errors import UsageError


def test_weights_rise_evenly_to_the_new_prompt():
    assert transition_weights(1) == (1.0,)
    assert transition_weights(4) == (0.25, 0.5, 0.75, 1.0)
    with pytest.raises(UsageError, match="transition"):
        transition_weights(0)
