"""A condition that takes effect little by little. To the controller it is a prompt like any other."""

from __future__ import annotations

from wavecore.arguments import whole


class Gradual(str):
    """A prompt that is gone over to in several chunks, from whatever is shown before.

    Parameters
    ----------
    prompt : str
    chunks : int
        The last of them follows the prompt alone.
    """

    chunks: int

    def __new__(cls, prompt: str, chunks: int) -> Gradual:
        """Make one; of one chunk it is a change at once."""
        whole("transition", chunks, 1)
        made = super().__new__(cls, prompt)
        made.chunks = chunks
        return made
