"""Other legal orders of the same slots, one slot a round.

A wavefront is acyclic in chunk order, so its slots can run round by round or chunk by chunk
(reading recorded keys and values) and give the same latents.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from wavecore.rounds.data import Key, Round, Slot


def round_major(rounds: Iterable[Round]) -> list[Round]:
    """One slot a round, in the order of the rounds, cleanest slot first."""
    return _one_by_one([(slot, round) for round in rounds for slot in round.slots])


def chunk_major(rounds: Iterable[Round]) -> list[Round]:
    """One slot a round: all stages of chunk 0, then of chunk 1, and so on."""
    pairs = [(slot, round) for round in rounds for slot in round.slots]
    return _one_by_one(sorted(pairs, key=lambda pair: pair[0].key))


def _one_by_one(pairs: list[tuple[Slot, Round]]) -> list[Round]:
    """A round for each slot, out of the round that had it; keys are released after their last use."""
    last: dict[Key, int] = {}
    for index, (slot, _) in enumerate(pairs):
        for key in (slot.key, *(read.key for read in slot.reads)):
            last[key] = index
    releases: dict[int, list[Key]] = {}
    for key, index in last.items():
        releases.setdefault(index, []).append(key)
    return [
        replace(
            round,
            index=index,
            slots=(slot,),
            releases=tuple(releases.get(index, ())),
            completes=slot.chunk if slot.stage == round.steps - 1 else None,
        )
        for index, (slot, round) in enumerate(pairs)
    ]
