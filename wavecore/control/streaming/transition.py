"""From one prompt to the next over several chunks."""

from __future__ import annotations

from wavecore.errors import UsageError


def transition_weights(chunks: int) -> tuple[float, ...]:
    """Share of the new prompt in each chunk of a transition: evenly rising, 1 in the last.

    Parameters
    ----------
    chunks : int
        Length of the transition; 1 is a change at once.
    """
    if chunks < 1:
        raise UsageError(f"transition: expected at least 1 chunk, got {chunks}")
    return tuple((index + 1) / chunks for index in range(chunks))
