"""What the ranks of a ring say to each other."""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec

from wavecore.cache.edits import Edit
from wavecore.rounds import Key, Round


class Layer(msgspec.Struct, tag=True, frozen=True):
    """A layer changes hands; its weights follow, then the pages in use of each open stream.

    `index` is -1 for the head. `names` are those of the weights.
    """

    index: int
    names: list[str]


class Ready(msgspec.Struct, tag=True, frozen=True):
    """All weights of a rank were sent: it holds layers `ends[rank - 1]` .. `ends[rank]` - 1.

    `codec` says that it encodes or decodes too; the VAE, pickled, comes with the message then.
    """

    config: dict[str, Any]
    ends: list[int]
    codec: bool = False


class Code(msgspec.Struct, tag=True, frozen=True):
    """Something for the VAE of a rank to do, and the answer to it, on a lane of its own.

    Attributes
    ----------
    stream : int
        Which encoder or decoder; each has its own state.
    task : "encode", "decode", "flush" or "end"
        Frames to latents; a latent to frames; the latents that an encoder holds back, if any; forget the
        stream.
    seconds : float
        What it took, in the answer.
    """

    stream: int
    task: Literal["encode", "decode", "flush", "end"]
    seconds: float = 0.0


class Open(msgspec.Struct, tag=True, frozen=True):
    """A stream begins: its pages, the height and width of its latents, whether keys are held in int8."""

    stream: int
    pages: int
    unroped_pages: int
    height: int
    width: int
    int8_keys: bool


class Close(msgspec.Struct, tag=True, frozen=True):
    """A stream is over."""

    stream: int


class Stop(msgspec.Struct, tag=True, frozen=True):
    """The ring ends."""


class Work(msgspec.Struct, tag=True):
    """A round of one stream on its way around the ring.

    With it come hidden state, modulation and time embedding of each batch, and the embedded texts that are
    new; on the last hop the predictions instead. From the rank of layer `probe` on, the mean hidden states
    after it come last.

    Attributes
    ----------
    stream : int
    micro_step : int
        Number of the round among all rounds of the ring.
    round : Round
    text : dict of int to int
        Text of each chunk, by number.
    new_text, old_text : list of int
        Texts that come with this round, and those that no further round uses.
    drops : list of Key
        What the cache forgets before it.
    edits : list of Edit
        What else changes in the page table before it, in a stream of calls.
    split : list of int
        Layers of each rank from the next micro-step on; empty when they stay.
    seconds : list of list of float
        Time of each layer on the ranks passed so far; on a GPU, of a round done before this one.
    began : list of float
        When their layers began, in seconds of the clock of each rank's machine.
    probe : int or None
        Layer after which the mean hidden state of every slot is wanted.
    """

    stream: int
    micro_step: int
    round: Round
    text: dict[int, int]
    new_text: list[int]
    old_text: list[int]
    drops: list[Key]
    split: list[int]
    seconds: list[list[float]]
    probe: int | None = None
    began: list[float] = []
    edits: list[Edit] = []


Message: TypeAlias = Layer | Ready | Code | Open | Close | Stop | Work
