"""Wave Forcing rounds: one chunk per round, every stage at work on another chunk."""

from __future__ import annotations

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

    def count(self, chunks: int) -> int:
        return chunks + self.steps if chunks else 0

    def entered(self, index: int) -> int:
        return index

    def settled(self) -> int:
        return self.anchor_chunks + self.steps + self._widest() + 1

    def width(self, active: int) -> int:
        """Clean chunks a denoising slot reads when `active` denoising slots are at work."""
        if self.history_rule == "fixed":
            active = self.steps
            if self.history is not None:
                return self.history
        return max(0, self.window - active - 1)

    def round(self, index: int, chunks: int | None = None) -> Round:
        steps = self.steps
        held = [
            Key(index - s, s)
            for s in range(steps, -1, -1)
            if index >= s and (chunks is None or index - s < chunks)
        ]
        denoising = [key for key in held if key.stage < steps]
        width = self.width(len(denoising))
        slots = []
        for key in held:
            stored = max(0, index - steps)
            anchors, history = self._clean(stored, self.store_history if key.stage == steps else width, steps)
            base = None
            if self.anchor_position == "reference" and key.stage < steps:
                counted = [*anchors, *history]
                base = self.start(denoising[0].chunk) - sum(self.frames(k.chunk) for k in counted)
            live = [Key(index - steps, steps)] if index >= steps and key.stage < steps else []
            flight = [k for k in denoising if k.stage >= key.stage][::-1] if key.stage < steps else [key]
            slots.append(self._slot(key, self._reads(anchors, [*history, *live, *flight], base), steps))
        return Round(
            index,
            steps,
            tuple(slots),
            releases=self._releases(index, chunks, denoising),
            completes=next((k.chunk for k in denoising if k.stage == steps - 1), None),
            phase=self._phase(index, chunks),
        )

    def _releases(self, index: int, chunks: int | None, denoising: list[Key]) -> tuple[Key, ...]:
        oldest = index - self.steps - self._widest()
        out_of_reach = oldest >= self.anchor_chunks and (chunks is None or oldest < chunks)
        return (*denoising, *([Key(oldest, self.steps)] if out_of_reach else []))

    def _widest(self) -> int:
        return max(self.width(1), self.width(self.steps), self.store_history)

    def _phase(self, index: int, chunks: int | None) -> str:
        if chunks is not None and index >= chunks:
            return "drain"
        if index < self.steps:
            return "fill"
        full = index >= self.steps + self.anchor_chunks + self.width(self.steps)
        return "steady, full width" if full else "steady"


def wavefront(steps: int, chunks: int | None = None, **rules: Any) -> Rounds:
    """Rounds of a wavefront; `rules` are parameters of `Wavefront`."""
    return Rounds(Wavefront(steps=steps, **rules), chunks)
