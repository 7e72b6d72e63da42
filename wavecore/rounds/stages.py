"""A wavefront as one stage sees it: what it computes in a round, what it is sent, and what it can forget."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from wavecore.errors import UsageError
from wavecore.rounds.data import Key, Round, Slot
from wavecore.rounds.rules import Rules, at_least
from wavecore.rounds.wavefront import Wavefront


@dataclass(frozen=True)
class Stage:
    """One stage of a wavefront: a denoising stage, or the store pass, which is stage `steps`.

    A stage works on chunk c in round c + stage. It reads what cleaner stages write in the same round
    and clean chunks that it was sent as they were stored.

    Parameters
    ----------
    rules : Wavefront
        Of the whole stream.
    index : int
        Number of the stage, from 0, the noisiest.
    generations : int
        Rounds that may be under way on its pages at once. With 2, what is sent for the next round
        never meets pages that this round reads; with 1, it may as soon as a layer was attended.
    """

    rules: Rules
    index: int
    generations: int = 2
    _narrow: Wavefront = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rules = self.rules
        if not isinstance(rules, Wavefront):
            raise UsageError(f"rounds: expected wavefront for replicas, got {type(rules).__name__.lower()}")
        if rules.branches:
            raise UsageError("rounds: expected a stream without branches for replicas")
        at_least("generations", self.generations, 1)
        if not 0 <= self.index <= rules.steps:
            raise UsageError(f"stage: expected 0 to {rules.steps}, got {self.index}")
        store = self.index == rules.steps
        # The same rounds, but clean chunks are released when this stage reads them no more.
        narrow = replace(rules, history=0, history_rule="fixed") if store else replace(rules, store_history=0)
        object.__setattr__(self, "_narrow", narrow)

    def at_work(self, index: int, chunks: int | None) -> bool:
        """Whether the stage has a chunk in round `index`."""
        chunk = index - self.index
        return chunk >= 0 and (chunks is None or chunk < chunks)

    def round(self, index: int, chunks: int | None = None) -> Round:
        """Round `index` with the slots that concern this stage only, in the order of the round.

        Its own slot has its reads. The slots that it reads from have none: their keys and values
        arrive ready. Nothing is released before `generations` rounds are over that read it.
        """
        return self.part(self.rules.round(index, chunks), chunks)

    def part(self, whole: Round, chunks: int | None = None) -> Round:
        """What `round` gives, of a round of the whole stream."""
        own = self.own(whole)
        reads = {read.key for read in own.reads}
        slots = [
            slot
            if slot is own
            else Slot(slot.chunk, slot.stage, slot.frame_start, slot.frames, (), slot.keep_unroped)
            for slot in whole.slots
            if slot is own or slot.key in reads
        ]
        over = whole.index - self.generations + 1
        releases = self._narrow.releases(over, chunks) if over >= 0 else ()
        return replace(whole, slots=tuple(slots), releases=releases)

    def own(self, round: Round) -> Slot:
        """The stage's slot in a round of its own."""
        return next(slot for slot in round.slots if slot.stage == self.index)

    def incoming(self, round: Round) -> tuple[Key, ...]:
        """What it is sent in a round of its own, in attention order."""
        return tuple(slot.key for slot in round.slots if slot.stage != self.index)

    def span(self, chunks: int) -> range:
        """Rounds in which the stage is at work in a stream of `chunks` chunks."""
        return range(self.index, self.index + chunks)
