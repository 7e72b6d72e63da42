"""What a controller is told once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import get_args

from wavecore.control.clock import nanoseconds
from wavecore.control.speculative.adapters import Adapter
from wavecore.control.speculative.events import Fallback
from wavecore.control.speculative.plan import PlaybackPlan
from wavecore.errors import UsageError

FALLBACKS: tuple[str, ...] = get_args(Fallback)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Parameters of a controller.

    Parameters
    ----------
    adapter : Adapter
        How calls continue the stream; also says how many latents a call samples.
    group_seconds : float or Fraction
        δ, seconds of a group.
    first_group_seconds : sequence of float or Fraction
        Seconds of the first groups where they differ.
    fallback : "freeze", "drop", "stale" or "retarget"
        What covers a loss. `freeze`: hold the last frame and move the plan. `drop`: keep the plan and leave
        out what is not there in time. `stale` and `retarget`: when a branch fails before any of it is
        committed, restore what it replaced; its condition then waits for the next refill (`stale`) or for
        the next feasible position (`retarget`). Where nothing can be restored they freeze.
    commit_lead : float
        Seconds by which a group is handed downstream, irrevocably, before it is shown.
    job_timeout : float
        Seconds after which a job is told to end. It keeps its slot until the worker confirms.
    failure_limit : int
        Jobs in a row that fail before the controller gives up and closes.
    cut_every : int, optional
        Positions of a chunk, where a running call can be cut between its chunks (a wave): an update then
        need not wait for the end of the call. Left out: calls are of one piece.
    """

    adapter: Adapter
    group_seconds: float | Fraction
    first_group_seconds: Sequence[float | Fraction] = ()
    fallback: Fallback = "freeze"
    commit_lead: float = 0.0
    job_timeout: float = 60.0
    failure_limit: int = 3
    cut_every: int | None = None

    def __post_init__(self) -> None:
        if self.fallback not in FALLBACKS:
            raise UsageError(f"fallback: expected one of {', '.join(FALLBACKS)}, got {self.fallback!r}")
        if not nanoseconds(self.job_timeout, "job_timeout"):
            raise UsageError(f"job_timeout: expected more than 0 seconds, got {self.job_timeout}")
        nanoseconds(self.commit_lead, "commit_lead")
        if self.failure_limit < 1:
            raise UsageError(f"failure_limit: expected at least 1, got {self.failure_limit}")
        if self.cut_every is not None and self.cut_every < 1:
            raise UsageError(f"cut_every: expected at least 1, got {self.cut_every}")
        if self.cut_every is not None and self.adapter.overlap:
            raise UsageError(
                f"cut_every: expected an adapter that regenerates nothing, got {self.adapter.name}"
            )
        self.plan()

    def plan(self) -> PlaybackPlan:
        """Return a playback plan that has not begun."""
        return PlaybackPlan(self.group_seconds, self.first_group_seconds)
