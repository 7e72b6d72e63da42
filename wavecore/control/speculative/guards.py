"""The guards: may a call start at a position now (F_j), and is it time to refill?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import sub

from wavecore.control.clock import SECOND, nanoseconds
from wavecore.control.speculative.estimators import Estimator
from wavecore.control.speculative.events import Rejection
from wavecore.control.speculative.settings import Settings
from wavecore.control.speculative.state import State

_NEVER = 10**9 * SECOND


class Guards:
    """F_j and Refill over the registers.

    Each condition of F_j is a method that returns None, or by how many nanoseconds it fails where it is
    about time and 0 where it is not.

    Parameters
    ----------
    settings : Settings
    state : State
    estimator : Estimator
    """

    def __init__(self, settings: Settings, state: State, estimator: Estimator) -> None:
        self._adapter = settings.adapter
        self._commit_lead = nanoseconds(settings.commit_lead)
        self._state = state
        self._estimator = estimator
        self._latencies: Sequence[int] | None = None
        self._margin = 0
        self._needs: dict[int, int] = {}  # by trimmed latents, for positions of uniform duration
        self._conditions = (
            ("not locked", self.open),
            ("context ready", self.context_ready),
            ("cover", self.cover),
            ("valid VAE", self.valid_decoder),
            ("playable groups", self.playable),
            ("deadline", self.in_time),
        )

    # -- estimates -----------------------------------------------------------------------

    @property
    def latencies(self) -> Sequence[int] | None:
        """Ĉ, the latest valid answer of the estimator; None while it has had none."""
        return self._latencies

    @property
    def margin(self) -> int:
        """ε, the latest valid answer of the estimator."""
        return self._margin

    def refresh(self) -> str | None:
        """Ask the estimator again.

        Returns
        -------
        str or None
            What was wrong with its answer, which is then left aside.
        """
        latencies, margin = self._estimator.latencies(), self._estimator.margin()
        self._needs.clear()
        if not _valid(margin):
            return f"margin: expected finite nanoseconds, 0 or more, got {margin}"
        self._margin = int(margin)
        if latencies is None:
            return None
        if len(latencies) != self._adapter.latents or not all(map(_valid, latencies)):
            return f"latencies: expected {self._adapter.latents} finite numbers, 0 or more, got {latencies}"
        self._latencies = latencies  # type: ignore[assignment]
        return None

    def need(self, position: int) -> int:
        """Nanoseconds from launch to the transfer of `position`, so that all groups of the call meet theirs.

        max over m of Ĉ_{j,m} - (b_{j+m} - b_j), plus ε and the lead of the transfer over display.
        """
        trimmed = self._adapter.trimmed(position)
        uniform = position >= self._state.plan.uniform_from
        need = self._needs.get(trimmed) if uniform else None
        if need is None:
            if self._latencies is None:
                return _NEVER
            offset = self._state.plan.offset
            groups = range(position, position + self._adapter.latents - trimmed)
            need = max(map(sub, self._latencies[trimmed:], map(offset, groups)), default=0)
            need += offset(position) + self._margin + self._commit_lead
            if uniform:
                need += self._state.plan.rounding
                self._needs[trimmed] = need
        return need

    # -- F_j -----------------------------------------------------------------------------

    def open(self, position: int, time: int) -> int | None:
        """j >= l."""
        return None if position >= self._state.fixed else 0

    def context_ready(self, position: int, time: int) -> int | None:
        """What the adapter continues from is there, and the position suits it."""
        ready = position <= self._state.context_end and position % self._adapter.phase == 0
        return None if ready else 0

    def cover(self, position: int, time: int) -> int | None:
        """The predictions before `position` can meet all their deadlines: they are ready."""
        return None if position <= self._state.pixels_end else 0

    def valid_decoder(self, position: int, time: int) -> int | None:
        """Decoding can go on at `position` without touching frames before it."""
        ready = not self._adapter.carries_decoder or position <= self._state.snapshots_end
        return None if ready else 0

    def playable(self, position: int, time: int) -> int | None:
        """M_j > 0."""
        return None if self._adapter.playable(position) > 0 else 0

    def in_time(self, position: int, time: int) -> int | None:
        """Every new group is deliverable by its deadline: t + Ĉ_{j,m} + ε <= b_{j+m}."""
        short = time + self.need(position) - self._state.plan.deadline(position)
        return None if short <= 0 else short

    def check(self, position: int, time: int) -> Rejection | None:
        """F_j: None when it holds, otherwise the first condition that fails."""
        for name, condition in self._conditions:
            short = condition(position, time)
            if short is not None:
                return Rejection(position, name, short)
        return None

    # -- choice --------------------------------------------------------------------------

    def earliest(self, time: int) -> tuple[int | None, list[Rejection]]:
        """Earliest feasible position up to n, and why each one from the cursor to there is not."""
        rejected: list[Rejection] = []
        for position in range(self._state.cursor, self._state.end + 1):
            rejection = self.check(position, time)
            if rejection is None:
                return position, rejected
            rejected.append(rejection)
        return None, rejected

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

    def lead(self) -> int:
        """Refill lead η; what a call needs where the estimator gives no valid one."""
        need = self.need(self.append())
        lead = self._estimator.lead(need)
        return int(lead) if _valid(lead) else need

    def refill_time(self) -> int:
        """Time from which Refill (h <= η) holds."""
        return self._state.plan.deadline(self._state.pixels_end) - self.lead()


def _valid(value: float) -> bool:
    return 0 <= value < math.inf
