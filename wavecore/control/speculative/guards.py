"""The guards: may a call start at a position now (F_j), and is it time to refill?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub

from wavecore.control.clock import SECOND, nanoseconds
from wavecore.control.speculative.estimators import Estimator
from wavecore.control.speculative.events import Rejection
from wavecore.control.speculative.settings import Settings
from wavecore.control.speculative.state import Job, State

_NEVER = 10**9 * SECOND
_EXPLAINED = 64  # infeasible positions that a decision lists


class Guards:
    """F_j and Refill over the registers.

    Parameters
    ----------
    settings : Settings
    state : State
    estimator : Estimator

    Attributes
    ----------
    lead : int
        Refill lead η as of the latest `refill_time`.
    """

    def __init__(self, settings: Settings, state: State, estimator: Estimator) -> None:
        self._adapter = settings.adapter
        self._overlap = settings.adapter.overlap
        self._commit_lead = nanoseconds(settings.commit_lead)
        self._state = state
        self._estimator = estimator
        self._latencies: Sequence[int] | None = None
        self._margin = self.lead = 0
        self._cut_delay: int | None = None
        self._chunk = settings.cut_every or 1
        self._needs: dict[int, int] = {}  # by trimmed latents, for positions of uniform duration
        plan = state.plan
        settled = range(plan.uniform_from, plan.uniform_from + self._adapter.latents)
        self._offsets = [plan.offset(p) - plan.offset(plan.uniform_from) for p in settled]
        self._refill_end, self._refill_start, self._refill_time = -1, state.plan.start, 0

    # -- estimates -----------------------------------------------------------------------

    @property
    def latencies(self) -> Sequence[int] | None:
        """Ĉ, the latest valid answer of the estimator; None while it has had none."""
        return self._latencies

    @property
    def margin(self) -> int:
        """ε, the latest valid answer of the estimator."""
        return self._margin

    @property
    def cut_delay(self) -> int:
        """How much longer a call takes to its first group where it cuts another.

        Where that is not known, a round of a wave: the time from one chunk to the next.
        """
        if self._cut_delay is not None:
            return self._cut_delay
        return 0 if self._latencies is None else self._chunk_time()

    def refresh(self) -> str | None:
        """Ask the estimator again.

        Returns
        -------
        str or None
            What was wrong with its answer, which is then left aside.
        """
        latencies, margin = self._estimator.latencies(), self._estimator.margin()
        self._needs.clear()
        self._refill_end = -1
        if not _valid(margin):
            return f"margin: expected finite nanoseconds, 0 or more, got {margin}"
        self._margin = int(margin)
        delay = self._estimator.cut_delay()
        if delay is not None:
            if not _valid(delay):
                return f"cut_delay: expected finite nanoseconds, 0 or more, got {delay}"
            self._cut_delay = int(delay)
        if latencies is None:
            return None
        # The sum is not finite if one of them is not, and NaN compares to nothing.
        if len(latencies) != self._adapter.latents or not _valid(sum(latencies)) or min(latencies) < 0:
            return f"latencies: expected {self._adapter.latents} finite numbers, 0 or more, got {latencies}"
        self._latencies = tuple(map(int, latencies))
        return None

    def need(self, position: int) -> int:
        """Nanoseconds from launch to the transfer of `position`, so that all groups of the call meet theirs.

        max over m of Ĉ_{j,m} - (b_{j+m} - b_j), plus ε and the lead of the transfer over display.
        """
        trimmed = min(self._overlap, position)
        uniform = position >= self._state.plan.uniform_from
        need = self._needs.get(trimmed) if uniform else None
        if need is None:
            if self._latencies is None:
                return _NEVER
            if uniform:
                offsets = self._offsets
            else:
                plan = self._state.plan
                end = position + self._adapter.latents - trimmed
                offsets = [plan.offset(p) - plan.offset(position) for p in range(position, end)]
            need = max(map(sub, self._latencies[trimmed:], offsets), default=0)
            need += self._margin + self._commit_lead
            if uniform:
                need += self._state.plan.rounding
                self._needs[trimmed] = need
        return need

    # -- F_j -----------------------------------------------------------------------------

    def open(self, position: int) -> bool:
        """j >= l."""
        return position >= self._state.fixed

    def context_ready(self, position: int) -> bool:
        """What the adapter continues from is there, and the position suits it."""
        return position <= self._state.context_end and position % self._adapter.phase == 0

    def cover(self, position: int) -> bool:
        """The predictions before `position` can meet all their deadlines: they are ready."""
        return position <= self._state.pixels_end

    def valid_decoder(self, position: int) -> bool:
        """Decoding can go on at `position` without touching frames before it."""
        return not self._adapter.carries_decoder or position <= self._state.snapshots_end

    def playable(self, position: int) -> bool:
        """M_j > 0."""
        return self._adapter.playable(position) > 0

    def in_time(self, position: int, time: int) -> int:
        """Nanoseconds by which some group would miss its deadline; 0 or less when t + Ĉ_m + ε <= b_{j+m}."""
        return time + self.need(position) - self._state.plan.deadline(position)

    _conditions = (
        ("not locked", open),
        ("context ready", context_ready),
        ("cover", cover),
        ("valid VAE", valid_decoder),
        ("playable groups", playable),
    )

    def check(self, position: int, time: int) -> Rejection | None:
        """F_j: None when it holds, otherwise a condition that fails, the deadline before the others."""
        short = self.in_time(position, time)
        return self.check_untimed(position) if short <= 0 else Rejection(position, "deadline", short)

    def check_untimed(self, position: int) -> Rejection | None:
        """F_j without its deadlines."""
        for name, condition in self._conditions:
            if not condition(self, position):
                return Rejection(position, name)
        return None

    # -- choice --------------------------------------------------------------------------

    def earliest(self, time: int) -> tuple[int | None, list[Rejection]]:
        """Earliest feasible position up to n, and why those before it are not (the nearest of them)."""
        state, rejected = self._state, list[Rejection]()
        deadline, end = state.plan.deadline, state.end
        settled = max(state.plan.uniform_from, self._overlap)  # from there on every call needs the same
        need = self.need(settled)
        # Where the clock has jumped, arbitrarily many positions are too late.
        in_time = state.plan.position_from(time + self.need(state.plan.uniform_from + self._adapter.latents))
        first = max(state.cursor, min(in_time, end + 1) - _EXPLAINED)
        for position in range(first, end + 1):
            short = time + (need if position >= settled else self.need(position)) - deadline(position)
            rejection = Rejection(position, "deadline", short) if short > 0 else self.check_untimed(position)
            if rejection is None:
                return position, rejected
            rejected.append(rejection)
        return None, rejected

    def cut(self, job: Job, time: int) -> tuple[int | None, list[Rejection]]:
        """Earliest feasible position if the active job were cut; never within what the job builds on.

        Up to n everything from there on is dropped; behind n only between two chunks of the job, where the
        chunks before go on and have to come in time. None also where waiting for the end of the job, after
        which any latent will do, is expected to answer sooner.

        Parameters
        ----------
        job : Job
            The active one.
        time : int
        """
        position, rejected = self._earliest_cut(job, time + self.cut_delay)
        gain = 0 if position is None else self._state.plan.deadline(position) - self._after(job)
        if position is None or gain <= 0:
            return position, rejected
        return None, [*rejected, Rejection(position, "sooner after the job", gain)]

    def _earliest_cut(self, job: Job, time: int) -> tuple[int | None, list[Rejection]]:
        position, rejected = self.earliest(time)
        if position is not None:
            return position, rejected
        for position in range(job.position, job.position + job.groups, self._chunk):
            if position <= self._state.end:
                continue
            short, late = self.in_time(position, time), self.late_in_flight(job, position)
            if short <= 0 and late <= 0:
                return position, rejected
            rejected.append(
                Rejection(position, "deadline", short) if short > 0 else Rejection(position, "cover", late)
            )
        return None, rejected

    def _after(self, job: Job) -> int:
        """When the earliest position is due that is feasible after the job, where its times are as expected.

        Behind its last group a job stores its last chunk, which takes a round more.
        """
        assert self._latencies is not None
        end, plan = job.start + self._latencies[-1] + self._chunk_time(), self._state.plan
        position = plan.position_from(end + self.need(job.position + job.groups))
        return plan.deadline(max(position, self._state.fixed))

    def late_in_flight(self, job: Job, position: int) -> int:
        """Nanoseconds by which something that the job still makes before `position` would be too late."""
        if self._latencies is None:
            return _NEVER
        first = max(self._state.pixels_end, job.position)
        expected = job.start + self._margin + self._commit_lead
        return max(
            (
                expected + self._latencies[job.latent + p - job.position] - self._state.plan.deadline(p)
                for p in range(first, position)
            ),
            default=0,
        )

    def _chunk_time(self) -> int:
        """From the last chunk but one of a call to the last."""
        assert self._latencies is not None
        before = self._latencies[max(len(self._latencies) - 1 - self._chunk, 0)]
        return max(self._latencies[-1] - before, 0)  # measured one by one, they need not be in order

    def append(self) -> int:
        """Where a refill goes: n, or the nearest position before it that suits the adapter.

        Behind n where that is locked already: the positions between stay empty.
        """
        end, phase = self._state.end, self._adapter.phase
        position = end - end % phase
        return position if position >= self._state.fixed else position + phase

    def coverage(self, time: int) -> int:
        """Remaining continuous playable nanoseconds, h."""
        return max(self._state.plan.deadline(self._state.pixels_end) - time, 0)

    def _find_lead(self) -> int:
        """η: what a call needs if the estimator's is not valid, 0 if nothing is known at all."""
        if self._latencies is None:
            return 0
        need = self.need(self.append())
        lead = self._estimator.lead(need)
        return int(lead) if _valid(lead) else need

    def refill_time(self) -> int:
        """Time from which Refill (h <= η) holds; h up to the append position, if that lies before n."""
        plan, end = self._state.plan, self._state.pixels_end
        if end != self._refill_end or plan.start != self._refill_start:
            self._refill_end, self._refill_start = end, plan.start
            self.lead = self._find_lead()
            self._refill_time = plan.deadline(end - end % self._adapter.phase) - self.lead
        return self._refill_time


def _valid(value: float) -> bool:
    return 0 <= value < math.inf
