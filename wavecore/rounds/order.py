"""Other legal orders of the same slots, one slot a round.

A wavefront is acyclic in chunk order, so its slots can run round by round or chunk by chunk
(reading recorded keys and values) and give the same latents.
"""

from __future__ import annotations

from collections.abc import Iterable

from wavecore.rounds.data import Key, Round, Slot


def round_major(rounds: Iterable[Round]) -> list[Round]:
    """One slot a round, in the order of the rounds, cleanest slot first."""
    return _one_by_one([(slot, r.steps) for r in rounds for slot in r.slots])


def chunk_major(rounds: Iterable[Round]) -> list[Round]:
    """One slot a round: all stages of chunk 0, then of chunk 1, and so on."""
    return _one_by_one(sorted(((s, r.steps) for r in rounds for s in r.slots), key=lambda pair: pair[0].key))


def _one_by_one(slots: list[tuple[Slot, int]]) -> list[Round]:
    last: dict[Key, int] = {}
    for index, (slot, _) in enumerate(slots):
        for key in (slot.key, *(read.key for read in slot.reads)):
            last[key] = index
    releases: dict[int, list[Key]] = {}
    for key, index in last.items():
        releases.setdefault(index, []).append(key)
    return [
        Round(
            index,
            steps,
            (slot,),
            releases=tuple(releases.get(index, ())),
            completes=slot.chunk if slot.stage == steps - 1 else None,
        )
        for index, (slot, steps) in enumerate(slots)
    ]
