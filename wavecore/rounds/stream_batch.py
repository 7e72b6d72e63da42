"""StreamDiffusionV2 rounds: all noise levels as one batch, each level with its own history."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wavecore.rounds.data import Key, Round, Slot
from wavecore.rounds.rules import Rounds, Rules, at_least


@dataclass(frozen=True, kw_only=True)
class StreamBatch(Rules):
    """Row i of round t holds chunk t - i and reads only what chunks wrote at level i.

    There is no store pass: the anchor (the sinks of StreamDiffusionV2), the `history` chunks
    before it and itself are all the context of a row.

    Parameters
    ----------
    history : int
        Chunks besides the anchor that a row reads before its own.
    """

    chunk_frames: int = 1
    first_chunk_frames: int | None = 2
    history: int = 2
    anchor_chunks: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("history", self.history, 0)

    def rounds_held(self) -> int:
        return self.steps

    def settled(self) -> int:
        return self.anchor_chunks + self.history + self.retain + self.steps

    def round(self, index: int, chunks: int | None = None) -> Round:
        slots: list[Slot] = []
        for stage in range(self.steps - 1, -1, -1):
            chunk = self.entering(index - stage)
            if chunk is None or (chunks is not None and chunk >= chunks):
                continue
            key = Key(chunk, stage)
            anchors, history = self._clean(chunk, self.history, stage)
            slots.append(self._slot(key, self._reads(anchors, [*history, key]), stage))
        drain = chunks is not None and index > self.entry(chunks - 1)
        return Round(
            index,
            self.steps,
            tuple(slots),
            releases=tuple(key for slot in slots for key in self._release(slot.key, self.history)),
            completes=next((slot.chunk for slot in slots if slot.stage == self.steps - 1), None),
            store_pass=False,
            phase="drain" if drain else "fill" if len(slots) < self.steps else "steady",
        )


def stream_batch(steps: int, chunks: int | None = None, **rules: Any) -> Rounds:
    """Rounds of a stream batch; `rules` are parameters of `StreamBatch`."""
    return Rounds(StreamBatch(steps=steps, **rules), chunks)
