"""Wave Forcing rounds: one chunk per round, every stage at work on another chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from wavecore.errors import UsageError
from wavecore.rounds.data import Key, Round
from wavecore.rounds.rules import Rounds, Rules, at_least


@dataclass(frozen=True, kw_only=True)
class Wavefront(Rules):
    """Slot s of round t holds chunk t - s; slot `steps` is the store pass.

    A denoising slot reads anchor, bounded clean history, the live store (chunk t - steps, stored
    in this very round), then the denoising slots s, s + 1, ... of the round, itself first. The
    store slot reads anchor, history and itself. (Wave Forcing; Self-Forcing with staggered noise.)

    Parameters
    ----------
    history : int, optional
        Clean chunks, besides anchor and live store, that a denoising slot reads. When not given,
        what is left of `window` after `steps` slots and one more: 2 at 4 steps, 1 at 5.
    store_history : int
        Clean chunks that the store slot reads.
    history_rule : "fixed" or "reference"
        "fixed": `history` chunks. "reference": what is left of `window` after the denoising slots
        at work and one more, so that it widens while the stages drain and the last chunks depend
        on where the stream ends (published Wave Forcing runtime).
    window : int
        Budget of chunks (7 chunks of 3 are the 21 latent frames of Wan).
    """

    history: int | None = None
    store_history: int = 5
    history_rule: Literal["fixed", "reference"] = "fixed"
    window: int = 7

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("history", self.history, 0)
        at_least("store_history", self.store_history, 0)
        if self.history_rule not in ("fixed", "reference"):
            raise UsageError(f"history_rule: expected fixed or reference, got {self.history_rule!r}")

    def _anchor_positions(self) -> tuple[str, ...]:
        return "adjacent", "reference", "absolute"

    def rounds_held(self) -> int:
        return self.steps + 1

    def settled(self) -> int:
        return self.anchor_chunks + self.steps + self._widest() + self.retain + 1

    def width(self, active: int) -> int:
        """Clean chunks a denoising slot reads when `active` denoising slots are at work."""
        if self.history_rule == "fixed":
            active = self.steps
            if self.history is not None:
                return self.history
        return max(0, self.window - active - 1)

    def round(self, index: int, chunks: int | None = None) -> Round:
        steps = self.steps
        held = self._held(index, chunks)
        denoising = [key for key in held if key.stage < steps]
        live = [key for key in held if key.stage == steps]
        stored = self.entered(index - steps)
        slots = []
        for key in live:
            anchors, history = self._clean(stored, self.store_history, steps)
            slots.append(self._slot(key, self._reads(anchors, [*history, key]), steps))
        anchors, history = self._clean(stored, self.width(len(denoising)), steps)
        base = None
        if self.anchor_position == "reference" and denoising:
            counted = sum(self.frames(other.chunk) for other in (*anchors, *history))
            base = self.start(denoising[0].chunk) - counted
        clean = [*history, *live]
        reads = [self._read_where_written(key) for key in (*clean, *denoising[::-1])]
        for place, key in enumerate(denoising):
            flight = reads[len(reads) - place - 1 :]  # itself, then the cleaner ones
            oldest = clean[0] if clean else key
            rest = (*reads[: len(clean)], *flight)
            slots.append(self._slot(key, (*self._anchors(anchors, oldest, base), *rest), steps))
        steady = "steady, full width" if stored >= self.anchor_chunks + self.width(steps) else "steady"
        drain = chunks is not None and index > self.entry(chunks - 1)
        return Round(
            index,
            steps,
            tuple(slots),
            releases=self._releases(held),
            completes=next((key.chunk for key in denoising if key.stage == steps - 1), None),
            phase="drain" if drain else "fill" if len(held) <= steps else steady,
        )

    def releases(self, index: int, chunks: int | None = None) -> tuple[Key, ...]:
        """`Round.releases` of round `index`."""
        return self._releases(self._held(index, chunks))

    def _held(self, index: int, chunks: int | None) -> list[Key]:
        """Chunks at work in a round, cleanest first."""
        held, before = [], self.entered(index - self.steps)
        for stage in range(self.steps, -1, -1):
            after = self.entered(index - stage + 1)
            if after > before and (chunks is None or before < chunks):
                held.append(Key(before, stage))
            before = after
        return held

    def _releases(self, held: Sequence[Key]) -> tuple[Key, ...]:
        denoising = [key for key in held if key.stage < self.steps]
        live = held[: len(held) - len(denoising)]
        return (*denoising, *(old for key in live for old in self._release(key, self._widest())))

    def _widest(self) -> int:
        return max(self.width(1), self.width(self.steps), self.store_history)


def wavefront(steps: int, chunks: int | None = None, **rules: Any) -> Rounds:
    """Rounds of a wavefront; `rules` are parameters of `Wavefront`."""
    return Rounds(Wavefront(steps=steps, **rules), chunks)
