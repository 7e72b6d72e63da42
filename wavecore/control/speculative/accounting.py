"""What became of every update and of every prediction."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from wavecore.control.clock import SECOND
from wavecore.control.speculative.events import Outcome


@dataclass(slots=True)
class UpdateRecord:
    """One accepted update.

    Times are nanoseconds. Response = display - arrival = R + C + Q.

    Attributes
    ----------
    version : int
    arrival : int
        When it was asked for.
    start : int or None
        Launch of its job; once it is displayed, of the job that made the group that was shown first.
    ready : int or None
        That group deliverable.
    display : int or None
        That version first shown.
    outcome : "displayed", "superseded", "identical", "lost" or None
        None while open. `identical`: asks for what is being made already. `lost`: the stream ended.
    by : int or None
        The version that superseded it, or that it is identical to.
    position : int or None
        Chosen branch position j of its (latest) launch.
    why : str
        Reason of the launch.
    passed : int
        Positions before `position` that were considered and not feasible.
    first : int or None
        First position of that job that may still be shown; `position` unless groups came too late.
    launches : int
        More than one after a failure.
    """

    version: int
    arrival: int
    start: int | None = None
    ready: int | None = None
    display: int | None = None
    outcome: Outcome | None = None
    by: int | None = None
    position: int | None = None
    why: str = ""
    passed: int = 0
    first: int | None = None
    launches: int = 0

    @property
    def wait(self) -> int | None:
        """R: from arrival to launch."""
        return None if self.start is None else self.start - self.arrival

    @property
    def generation(self) -> int | None:
        """C: from launch to the first group deliverable."""
        return None if self.ready is None or self.start is None else self.ready - self.start

    @property
    def alignment(self) -> int | None:
        """Q: from deliverable to shown."""
        return None if self.display is None or self.ready is None else self.display - self.ready

    @property
    def response(self) -> int | None:
        """L = R + C + Q."""
        return None if self.display is None else self.display - self.arrival

    def as_dict(self) -> dict[str, Any]:
        """JSON values; times in seconds."""
        times = ("arrival", "start", "ready", "display", "wait", "generation", "alignment", "response")
        result: dict[str, Any] = {"version": self.version, "outcome": self.outcome, "by": self.by}
        for name in times:
            value = getattr(self, name)
            result[name] = None if value is None else value / SECOND
        chosen = {"position": self.position, "why": self.why, "passed": self.passed}
        return result | chosen | {"launches": self.launches}


@dataclass(slots=True)
class Totals:
    """Counts of one stream; what bootstrap calls made is counted apart.

    Every playable prediction is in the end played or discarded; until then it is outstanding.

    Attributes
    ----------
    calls, sampled, overlap, playable : int
        Launched jobs, the latents they sampled, of those the regenerated and trimmed, and the rest.
    bootstrap_calls, bootstrap_sampled : int
        The same for bootstrap launches, which the others do not include.
    played, bootstrap_played : int
        Positions shown.
    discarded : dict of str to int
        Predictions thrown away, by reason.
    bootstrap_discarded : int
    underruns, missed_groups : int
        Times that playback found nothing to show, and positions that were due then.
    missed_deadlines : int
        Groups that were complete after their deadline.
    fallbacks : dict of str to int
    failed, cancelled, ignored : int
        Jobs that ended so; events that changed nothing.
    superseded, identical, lost, displayed : int
        Updates by outcome.
    busy : int
        Nanoseconds in jobs, bootstrap apart.
    frozen : int
        Nanoseconds by which the plan was moved.
    startup : int or None
        From the first condition to the start of playback.
    began, latest : int
        Start of playback and latest event.
    """

    calls: int = 0
    sampled: int = 0
    overlap: int = 0
    playable: int = 0
    bootstrap_calls: int = 0
    bootstrap_sampled: int = 0
    played: int = 0
    bootstrap_played: int = 0
    discarded: dict[str, int] = field(default_factory=dict)
    bootstrap_discarded: int = 0
    underruns: int = 0
    missed_groups: int = 0
    missed_deadlines: int = 0
    fallbacks: dict[str, int] = field(default_factory=dict)
    failed: int = 0
    cancelled: int = 0
    ignored: int = 0
    superseded: int = 0
    identical: int = 0
    lost: int = 0
    displayed: int = 0
    busy: int = 0
    frozen: int = 0
    startup: int | None = None
    began: int | None = None
    latest: int = 0

    def count(self, counts: dict[str, int], key: str, by: int = 1) -> None:
        """Add to one of the counts by name."""
        counts[key] = counts.get(key, 0) + by

    @property
    def waste(self) -> float:
        """w = 1 - U/(NM), over the predictions whose fate is known; 0 before any.

        For a trimmed adapter M is its own full-use yield: overlap is work, not waste.
        """
        discarded = sum(self.discarded.values())
        known = self.played + discarded
        return discarded / known if known else 0.0

    @property
    def amplification(self) -> float:
        """A = NM/U = 1/(1 - w)."""
        return 1 / (1 - self.waste) if self.waste < 1 else float("inf")

    def load(self, denoise: float, period: float) -> float:
        """Return ρ = A C_DiT / T.

        Below 1 it is enough for the average, not a promise for every deadline.

        Parameters
        ----------
        denoise, period : float
            Seconds C_DiT that one call keeps the denoiser busy, and T that one call's groups play.
        """
        return self.amplification * denoise / period

    def as_dict(self) -> dict[str, Any]:
        """JSON values; times in seconds, an infinite amplification (nothing played) as None."""
        names = [name for name in self.__slots__ if name not in ("began", "latest")]
        result: dict[str, Any] = {name: getattr(self, name) for name in names}
        for name in ("busy", "frozen", "startup"):
            result[name] = None if result[name] is None else result[name] / SECOND
        played_for = None if self.began is None else max(self.latest - self.began, 0) / SECOND
        occupied = self.busy / SECOND / played_for if played_for else 0.0
        sampled_per_played = self.amplification if self.waste < 1 else None
        ratios = {"waste": self.waste, "amplification": sampled_per_played, "utilisation": occupied}
        return result | {"seconds": played_for} | ratios
