"""From one prompt to the next over several chunks."""

from __future__ import annotations


def transition_share(index: int, chunks: int) -> float:
    """Share of the new prompt in a chunk of a transition: evenly rising, 1 in the last and from then on.

    Parameters
    ----------
    index : int
        Of the chunk, 0 where the transition begins.
    chunks : int
        Length of the transition; 1 is a change at once.
    """
    return min(index + 1, chunks) / chunks
