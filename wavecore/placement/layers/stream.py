"""One stream on a ring, with the calls that a session makes of every placement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from wavecore.cache.edits import Edit
from wavecore.models.dit import TextContext
from wavecore.placement.layers.messages import Work
from wavecore.placement.layers.shard import batches
from wavecore.placement.local import Batch
from wavecore.rounds import Key, NoiseLevel, Round

if TYPE_CHECKING:
    from wavecore.placement.layers.ring import Ring


@dataclass(frozen=True)
class RingText(TextContext):
    """A prompt as the ring knows it: every rank computes the keys of its own layers, once."""

    number: int
    embedded: Tensor  # [1, l, D]


class RingPlacement:
    """One stream on a ring; the same calls and attributes as `LocalPlacement` has for a session."""

    def __init__(self, ring: Ring, stream: int) -> None:
        self._ring, self._stream = ring, stream
        self.probe: int | None = None
        self.embeddings: dict[int, Tensor] = {}
        self._texts = 0
        self._known: set[int] = set()
        self._drops: list[Key] = []
        self._edits: list[Edit] = []
        self._closed = False

    @property
    def depth(self) -> int:
        """Rounds in flight."""
        return self._ring.ranks

    def encode_text(self, features: Tensor) -> RingText:
        """Condition of text features [1, l, text_dim]."""
        dit = self._ring.dit
        embedded = dit.text_embedding(features.to(dit.patch_embedding.weight.dtype))
        self._texts += 1
        return RingText((), (), self._texts, embedded)

    def submit(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> None:
        """Begin a round; parameters as for `LocalPlacement.run`, texts from `encode_text`."""
        groups = [
            Batch(self._ring.dit, slots, None, round.steps, latents, levels, text)  # type: ignore[arg-type]
            for slots in batches(round.slots)
        ]
        texts = {chunk: context for chunk, context in text.items() if isinstance(context, RingText)}
        used = {texts[slot.chunk].number: texts[slot.chunk].embedded for slot in round.slots}
        new = [number for number in used if number not in self._known]
        waiting = {context.number for context in texts.values()}
        old = [number for number in self._known if number not in waiting]
        self._known = (self._known | set(new)) - set(old)
        drops, self._drops = self._drops, []
        edits, self._edits = self._edits, []
        work = Work(
            stream=self._stream,
            micro_step=0,
            round=round,
            text={slot.chunk: texts[slot.chunk].number for slot in round.slots},
            new_text=new,
            old_text=old,
            drops=drops,
            split=[],
            seconds=[],
            probe=self.probe,
            edits=edits,
        )
        self._ring.submit(work, groups, [used[number] for number in new])

    def collect(self) -> dict[int, Tensor]:
        """Results of the oldest round submitted: the clean estimate of each slot by stage."""
        estimates, self.embeddings = self._ring.collect(self._stream)
        return estimates

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget keys that no further round reads, before the next one."""
        self._drops += keys

    def edit(self, edit: Edit) -> None:
        """Change the page table before the next round, on every rank."""
        self._edits.append(edit)

    def close(self) -> None:
        """Give up the stream's pages."""
        if not self._closed:
            self._closed = True
            self._ring.end_stream(self._stream)
