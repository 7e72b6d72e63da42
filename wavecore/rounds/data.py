"""What a round is: slots, the keys and values they read, and what is over after it.

Everything here is a value; nothing holds a tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from wavecore.errors import UsageError


class Key(NamedTuple):
    """Names the keys and values that one chunk wrote at one stage.

    Stage 0 is the noisiest denoising stage, stage `steps` the store pass on the clean latent.
    """

    chunk: int
    stage: int


@dataclass(frozen=True, slots=True)
class Read:
    """One chunk in the context of a slot.

    Attributes
    ----------
    key : Key
        Whose keys and values.
    frames : int
        Latent frames of that chunk.
    position : int
        Temporal index of its first frame as the reader sees it.
    anchor : bool
        True when the keys are rotated to `position` from un-roped ones.
    """

    key: Key
    frames: int
    position: int
    anchor: bool = False


@dataclass(frozen=True, slots=True)
class Slot:
    """One forward pass over one chunk.

    Attributes
    ----------
    chunk, stage : int
        What it computes; `stage` is also the index of its noise level.
    frame_start, frames : int
        Temporal index of the first latent frame, and how many there are.
    reads : tuple of Read
        Context in attention order, the slot's own keys and values included.
    keep_unroped : bool
        True when its keys are needed before rotation too, for a moving anchor.
    """

    chunk: int
    stage: int
    frame_start: int
    frames: int
    reads: tuple[Read, ...]
    keep_unroped: bool = False

    @property
    def key(self) -> Key:
        """The keys and values this slot writes."""
        return Key(self.chunk, self.stage)


@dataclass(frozen=True, slots=True)
class Round:
    """Slots that run together.

    Attributes
    ----------
    index : int
        Number of the round, from 0.
    steps : int
        Denoising stages N; a slot of stage N is the store pass.
    slots : tuple of Slot
        Cleanest first, an order in which they can run one after the other.
    releases : tuple of Key
        Keys and values that nobody reads after this round.
    completes : int, optional
        Chunk whose final latent exists after this round.
    store_pass : bool
        Whether chunks have a store pass after the last denoising stage.
    phase : str
        For people: "fill", "steady", "steady, full width", "drain", "denoise", "store".
    """

    index: int
    steps: int
    slots: tuple[Slot, ...]
    releases: tuple[Key, ...] = ()
    completes: int | None = None
    store_pass: bool = True
    phase: str = ""

    def edges(self) -> tuple[tuple[int, int], ...]:
        """(from stage, to stage) for every slot that reads what another slot of the round writes."""
        written = {slot.key for slot in self.slots}
        return tuple(
            (read.key.stage, slot.stage)
            for slot in self.slots
            for read in slot.reads
            if read.key in written and read.key != slot.key
        )

    def __str__(self) -> str:
        by_stage = {slot.stage: slot for slot in self.slots}
        cells = [str(by_stage[s].chunk) if s in by_stage else "" for s in range(self.steps + self.store_pass)]
        widths = [str(len(by_stage[s].reads)) if s in by_stage else "–" for s in range(self.steps)]
        while len(widths) > 1 and widths[-1] == "–":
            widths.pop()
        return f"| {self.index} | {' | '.join(cells)} | {self.phase} | {'/'.join(widths)} |"


def table(rounds: Iterable[Round], sigmas: Sequence[float] | None = None) -> str:
    """Rounds as a Markdown table: the chunk in every slot and how many chunks each slot reads.

    Parameters
    ----------
    rounds : iterable of Round
        At least one.
    sigmas : sequence of float, optional
        Noise level of each stage, for the head of the table.

    Raises
    ------
    UsageError
        There is no round.
    """
    rows = list(rounds)
    if not rows:
        raise UsageError("rounds: expected at least one, got none")
    steps = rows[0].steps
    heads = [f"s{s}" if sigmas is None else f"s{s} σ{sigmas[s]:.4g}" for s in range(steps)]
    if rows[0].store_pass:
        heads.append("store")
    context = "/".join(f"s{s}" for s in range(steps))
    head = f"| t | {' | '.join(heads)} | phase | context chunks {context} |"
    return "\n".join([head, "|---" * (len(heads) + 3) + "|", *map(str, rows)])
