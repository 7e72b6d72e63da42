"""Stages on ranks: which rank computes a stage in a round, what it is sent, and what it can forget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from wavecore.errors import UsageError
from wavecore.rounds.data import Key, Round, Slot
from wavecore.rounds.rules import Rules
from wavecore.rounds.wavefront import Wavefront


@dataclass(frozen=True)
class StageMap:
    """Which rank computes which stage: the same ones in every tick, or all stages in turn.

    A tick is a round of all streams. In it a rank runs its stages one after the other, cleanest first. Ranks
    that take the stages in turn all have the same work, also where their number does not divide that of the
    stages: a stage is then on another rank in every tick.

    Parameters
    ----------
    stages : int
        Denoising stages and the store, which is the last one.
    ranks : int
        With as many ranks as stages, rank r has stage r.
    groups : tuple of tuples of int, optional
        Stages of each rank; in turn when not given.
    """

    stages: int
    ranks: int
    groups: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.ranks <= self.stages:
            raise UsageError(
                f"ranks: expected 1 to {self.stages}, one a stage and one for the store, got {self.ranks}"
            )
        every = sorted(stage for group in self.groups for stage in group)
        if self.groups and (every != list(range(self.stages)) or not all(self.groups)):
            given = " | ".join(" ".join(map(str, group)) for group in self.groups)
            raise UsageError(f"ranks: expected each stage from 0 to {self.stages - 1} once, got {given}")

    @classmethod
    def of_groups(cls, groups: Sequence[Sequence[int]], stages: int) -> StageMap:
        """Fixed stages of each rank."""
        return cls(stages, len(groups), tuple(tuple(sorted(group)) for group in groups))

    @property
    def in_turn(self) -> bool:
        """Whether a stage moves from rank to rank."""
        return not self.groups and self.stages % self.ranks != 0

    def rank(self, stage: int, tick: int) -> int:
        """Rank that computes a stage in a tick."""
        if self.groups:
            return next(rank for rank, group in enumerate(self.groups) if stage in group)
        return (stage - tick * self.stages) % self.ranks

    def stages_of(self, rank: int) -> tuple[int, ...]:
        """Stages that a rank ever computes."""
        ticks = range(self.ranks if self.in_turn else 1)
        return tuple(
            stage for stage in range(self.stages) if any(self.rank(stage, tick) == rank for tick in ticks)
        )

    def sends(self, writer: int, reader: int) -> bool:
        """Whether a rank ever sends keys and values to another."""
        return writer != reader and max(self.stages_of(writer)) > min(self.stages_of(reader))

    def name(self, rank: int) -> str:
        """What a rank is called in errors and in the log."""
        if self.in_turn:
            return f"rank {rank} (stages in turn)"
        stages, store = self.stages_of(rank), self.stages - 1
        denoising = [str(stage) for stage in stages if stage != store]
        words = [f"stage{'s' * (len(denoising) > 1)} {', '.join(denoising)}"] if denoising else []
        return f"rank {rank} ({' and '.join([*words, *['store'] * (store in stages)])})"


@dataclass(frozen=True)
class Share:
    """A wavefront stream as one rank sees it.

    A stage s works on chunk c in round c + s. It reads what cleaner stages write in the same round, and clean
    chunks, which every rank that reads them is sent as they are stored.

    Parameters
    ----------
    rules : Wavefront
        Of the whole stream.
    map : StageMap
    rank : int
    """

    rules: Rules
    map: StageMap
    rank: int
    _narrow: Wavefront = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        rules = self.rules
        if not isinstance(rules, Wavefront):
            raise UsageError(f"rounds: expected wavefront for replicas, got {rules.kind}")
        if rules.branches:
            raise UsageError("rounds: expected a stream without branches for replicas")
        if self.map.stages != rules.steps + 1:
            raise UsageError(f"stages: expected {rules.steps + 1}, got {self.map.stages}")
        if not 0 <= self.rank < self.map.ranks:
            raise UsageError(f"rank: expected 0 to {self.map.ranks - 1}, got {self.rank}")
        # The same rounds, but clean chunks are released when no stage of this rank reads them any more.
        narrow, stages = rules, self.map.stages_of(self.rank)
        if stages == (rules.steps,):
            narrow = replace(rules, history=0, history_rule="fixed")
        elif rules.steps not in stages:
            narrow = replace(rules, store_history=0)
        object.__setattr__(self, "_narrow", narrow)

    def part(self, whole: Round, tick: int, chunks: int | None) -> Round:
        """What concerns this rank of a round of the whole stream, in the order of the round.

        Its own slots have their reads. Those that it is sent have none: their keys and values arrive ready.

        Parameters
        ----------
        whole : Round
        tick : int
            Number of the round among those of all streams.
        chunks : int or None
            Length of the stream, as far as it is known.
        """
        own = {slot.stage for slot in whole.slots if self.map.rank(slot.stage, tick) == self.rank}
        reads = {read.key for slot in whole.slots if slot.stage in own for read in slot.reads}
        slots = [
            slot
            if slot.stage in own
            else Slot(slot.chunk, slot.stage, slot.frame_start, slot.frames, (), slot.keep_unroped)
            for slot in whole.slots
            if slot.stage in own or slot.key in reads or self._keeps(slot, whole.index, chunks)
        ]
        return replace(whole, slots=tuple(slots), releases=self._narrow.releases(whole.index, chunks))

    def _keeps(self, slot: Slot, index: int, chunks: int | None) -> bool:
        """Whether a later round of this rank reads what no slot of this one does."""
        last = None if chunks is None else self.rules.count(chunks) - 1
        return self.map.in_turn and slot.stage == self.rules.steps and index != last

    def own(self, round: Round, tick: int) -> tuple[Slot, ...]:
        """Slots of a round that this rank computes."""
        return tuple(slot for slot in round.slots if self.map.rank(slot.stage, tick) == self.rank)

    def incoming(self, round: Round, tick: int) -> tuple[Key, ...]:
        """What it is sent in a round, in attention order."""
        own = self.own(round, tick)
        return tuple(slot.key for slot in round.slots if slot not in own)
