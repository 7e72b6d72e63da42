"""Real streams with updates at random times, for bench/speculative.py."""

from __future__ import annotations

import random
import threading
import time
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from wavecore.control.clock import SECOND
from wavecore.control.speculative import (
    Controller,
    QuantileEstimator,
    RetainedPrefix,
    Settings,
    UpdateRecord,
)
from wavecore.control.speculative import events as ev
from wavecore.interactive.predictions import Made, Prediction, Predictions
from wavecore.interactive.session import SpeculativeSession
from wavecore.interactive.speculation import Parts, Speculation, make_parts
from wavecore.trace import Trace

LATENTS = 12
SUBJECTS = ("a red ball", "a blue star", "a green box", "a white cross", "a yellow triangle")
MOTIONS = ("moving left over grass", "moving up over sand", "at rest on water", "moving right at night")


def start(pipe: Any, rounds: str | None = None, placement: str = "local", **more: Any) -> SpeculativeSession:
    """A session of calls of `LATENTS`; `more` as for `Speculation`."""
    speculation = Speculation(**{"latents": LATENTS, **more})
    return pipe.session(
        SUBJECTS[0],
        rounds=rounds,
        placement=placement,
        control="speculative",
        speculation=speculation,
    )


class FixedChunks:
    """K latents as one indivisible group: what a chunked stream hands over together."""

    def __init__(self, inner: Any, latents: int) -> None:
        self._inner, self._latents = inner, latents
        self.predictions = Predictions()

    def call(self, position: int, groups: int, trimmed: int, prompt: str):
        first = position * self._latents
        for _ in self._inner.call(first, self._latents, 0, prompt):
            pass
        made = [self._inner.predictions[first + m] for m in range(self._latents)]
        frames = np.concatenate([p.frames for p in made])
        self.predictions[position] = Prediction(made[-1].latent, frames, (), prompt)
        yield Made(position, ev.COMPLETE)

    def splice(self, position: int, groups: int, prompt: str) -> bool:
        return False

    def cut(self, position: int) -> Any:
        return self.predictions.cut(position), self._inner.cut(position * self._latents)

    def restore(self, shelf: Any) -> None:
        self.predictions.restore(shelf[0])
        self._inner.restore(shelf[1])

    def discard(self, shelf: Any) -> None:
        self._inner.discard(shelf[1])

    def release(self, before: int) -> None:
        self.predictions.forget(before)
        self._inner.release(before * self._latents)

    def close(self) -> None:
        self._inner.close()


def fixed_chunk_session(pipe: Any, rounds: str, prompt: str, trace: Trace) -> SpeculativeSession:
    """The same model, K and clock; a new prompt takes effect at the next chunk, which starts at nT - C."""
    speculation = Speculation(latents=LATENTS)
    inner = make_parts(pipe.model, speculation, pipe.rules(rounds, 4), pipe.levels(4), 0, pipe.size, pipe.fps)
    stride = pipe.model.vae.temporal_factor
    frame = 1 / Fraction(pipe.fps)
    settings = Settings(
        adapter=RetainedPrefix(1),
        group_seconds=LATENTS * stride * frame,
        first_group_seconds=((1 + (LATENTS - 1) * stride) * frame,),
    )
    controller = Controller(settings, QuantileEstimator(1))
    parts = Parts(settings.adapter, controller, FixedChunks(inner.generator, LATENTS))
    return SpeculativeSession(parts, prompt, pipe.fps, stride * LATENTS, None, speculation, {}, trace)


@dataclass
class Segment:
    """A stretch of a stream and what became of its updates."""

    records: list[UpdateRecord] = field(default_factory=list)
    changed: int = 0
    due: int = 0
    missing: int = 0
    amplification: float = 0.0

    @property
    def displayed(self) -> int:
        """Updates that were shown."""
        return sum(record.outcome == "displayed" for record in self.records)


def run_segment(session: SpeculativeSession, seconds: float, gaps: tuple[float, float], seed: int) -> Segment:
    """Play for `seconds`, with updates at random times; check every frame against the announced horizon.

    With `gaps` (0, 0) the next update comes at a random phase of 3 s after the one before was shown.
    """
    random_number = random.Random(seed)
    tickets: list[Any] = []
    over = threading.Event()

    def ask() -> None:
        while not over.wait(random_number.uniform(*gaps) if gaps[1] else random_number.uniform(0, 3.0)):
            prompt = f"{random_number.choice(SUBJECTS)} {random_number.choice(MOTIONS)}"
            tickets.append(session.update(prompt))
            if not gaps[1]:
                tickets[-1].future.exception()

    segment = Segment()
    announced: dict[int, bytes] = {}
    asking = threading.Thread(target=ask, daemon=True)
    began = time.perf_counter()
    with session:
        predictions = session._delivery._predictions
        for group in session:
            if group.index == 1:
                asking.start()
                began = time.perf_counter()
            if announced.setdefault(group.index, group.frames.tobytes()) != group.frames.tobytes():
                segment.changed += 1
            for position in predictions:
                if group.index < position < session.horizon.locked and position in predictions:
                    announced.setdefault(position, predictions[position].frames.tobytes())
            if group.index > 1 and time.perf_counter() - began > seconds:
                break
        over.set()
    asking.join(5)
    totals = session.totals
    segment.records = [ticket.result(5) for ticket in tickets]
    segment.due = totals.played + totals.bootstrap_played + totals.missed_groups
    segment.missing, segment.amplification = totals.missed_groups, totals.amplification
    return segment


def summary(segments: list[Segment], group: float) -> dict[str, Any]:
    """Latencies of the displayed updates in seconds, and the bar that follows from them."""
    records = [r for s in segments for r in s.records if r.outcome == "displayed"]

    def quantiles(part: str) -> dict[str, float]:
        values = np.array([getattr(r, part) for r in records]) / SECOND
        return {"median": float(np.median(values)), "mean": float(values.mean()), **{
            f"p{q}": float(np.percentile(values, q)) for q in (5, 95)
        }}  # fmt: skip

    outcomes = [r.outcome for s in segments for r in s.records]
    parts = {name: quantiles(name) for name in ("response", "wait", "generation", "alignment")}
    gap = max(abs(r.wait + r.generation + r.alignment - r.response) for r in records) / 1e6
    due, missing = sum(s.due for s in segments), sum(s.missing for s in segments)
    return {
        "updates": len(outcomes),
        **{name: outcomes.count(name) for name in ("displayed", "superseded", "identical", "lost")},
        **parts,
        "bar_c_plus_group_plus_50ms": parts["generation"]["median"] + group + 0.05,
        "frames_changed_before_horizon": sum(s.changed for s in segments),
        "groups_due": due,
        "groups_missing": missing,
        "underrun_rate": missing / due,
        "largest_gap_of_r_c_q_ms": gap,
        "amplification": float(np.mean([s.amplification for s in segments])),
    }
