"""A simulated wave: calls whose chunks go through the stages round by round, and that a prompt can cut."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from functools import partial

from wavecore.control.clock import Clock, nanoseconds
from wavecore.control.speculative import CallCost
from wavecore.control.speculative.events import (
    CONTEXT,
    LATENT,
    PIXELS,
    SNAPSHOT,
    Event,
    Finish,
    Launch,
    Ready,
    Wake,
)
from wavecore.control.speculative.runner import Item
from wavecore.errors import UsageError
from wavecore.rounds import Round
from wavecore.rounds.calls import CallRules, Piece, Wave

_DECODED = LATENT | PIXELS | SNAPSHOT


@dataclass(frozen=True, kw_only=True)
class WaveCosts:
    """Seconds of the pieces of a call that is a wave.

    Parameters
    ----------
    steps : int
        Denoising stages N.
    chunk_latents : int
        Latents of a chunk.
    round : float
        A round, however many of its slots are filled: with a device a slot, its slowest slot.
    slot : float
        Added for each filled slot: on one device all of them share it.
    decode : float
        One latent to its frames; the next round waits for it.
    first_alone : bool
        Whether the first chunk of a call goes through all stages before others follow.
    """

    steps: int
    chunk_latents: int
    round: float
    slot: float = 0.0
    decode: float = 0.0
    first_alone: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.type == "float":
                nanoseconds(getattr(self, field.name), field.name)
        if not self.round + self.slot:
            raise UsageError("round: expected rounds that take time, got 0 seconds")
        self.rules()

    def rules(self) -> CallRules:
        """How a call becomes rounds; what they read costs nothing here."""
        return CallRules(
            steps=self.steps,
            order="wavefront",
            chunk_frames=self.chunk_latents,
            history=0,
            store_history=0,
            first_alone=self.first_alone,
        )

    def seconds(self, round: Round) -> float:
        """One round without decoding."""
        return self.round + self.slot * len(round.slots)

    def call(self, latents: int) -> CallCost:
        """Times of a call of `latents` that is not cut."""
        ready: list[float] = []
        now = 0.0
        for round in self.rules().rounds([], 0, latents):
            now += self.seconds(round)
            for _ in _completed(round):
                now += self.decode
                ready.append(now)
        return CallCost(0.0, now - self.decode * latents, 0.0, tuple(ready), now)


class WaveWorker:
    """Runs the rounds of calls in virtual time; a launch while one is under way replaces its end.

    Parameters
    ----------
    costs : WaveCosts
    clock : Clock
    """

    def __init__(self, costs: WaveCosts, clock: Clock[Item]) -> None:
        self._costs, self._clock = costs, clock
        self._launch: Launch | None = None  # the call under way
        self._cut: Launch | None = None  # takes its place after the round under way
        self._stored: list[Piece] = []
        self._wave: Wave | None = None
        self._rounds: Iterator[Round] = iter(())

    def launch(self, launch: Launch) -> None:
        """Begin a call, or go on as another one from its position on."""
        if self._launch is not None:
            self._launch = self._cut = launch
            return
        self._launch = launch
        rules = self._costs.rules()
        self._wave = Wave(rules, rules.pieces(launch.position, launch.groups))
        self._rounds = self._wave.rounds(self._stored)
        self._next()

    def _next(self) -> None:
        """Begin the next round; what it makes is there at its end."""
        assert self._wave is not None and self._launch is not None
        if self._cut is not None:
            self._wave.splice(self._cut.position, self._cut.groups)
            self._cut = None
        round = next(self._rounds, None)
        if round is None:
            self._clock.post(partial(Finish, job=self._launch.job))
            self._launch = None
        else:
            self._clock.post(partial(self._end, round), nanoseconds(self._costs.seconds(round)))

    def _end(self, round: Round, time: int) -> Event:
        rules, delay = self._costs.rules(), 0
        self._stored[:] = rules.stored(round)  # no history is read
        for piece in self._stored:
            for position in range(piece.start, piece.end):
                self._clock.post(partial(self._report, position, CONTEXT))
        for position in _completed(round):
            delay += nanoseconds(self._costs.decode)
            self._clock.post(partial(self._report, position, _DECODED), delay)
        self._clock.post(self._go_on, delay, rank=1)
        return Wake(time)

    def _go_on(self, time: int) -> Event:
        self._next()
        return Wake(time)

    def _report(self, position: int, parts: int, time: int) -> Event:
        """Under the job that is active then, unless the position was made for what a cut has dropped."""
        launch = self._launch
        if launch is None or (self._cut is not None and position >= self._cut.position):
            return Wake(time)
        return Ready(time, launch.job, position - launch.position, parts)


def _completed(round: Round) -> range:
    """Positions whose latents are complete after a round."""
    frames = next((slot.frames for slot in round.slots if slot.chunk == round.completes), 0)
    return range(round.completes or 0, (round.completes or 0) + frames)
