"""Whether one more session would break the latency objective of those there are: plain arithmetic."""

from __future__ import annotations

from dataclasses import dataclass

_HEADROOM = 0.9  # of the worker's time that sessions may take together


@dataclass(frozen=True)
class Cost:
    """What a session costs, measured alone while the model warms up.

    Attributes
    ----------
    response : float
        Seconds from a prompt to its first group.
    load : float
        Share of the worker's time that a stream in real time takes.
    group : float
        Seconds that a group plays.
    """

    response: float
    load: float
    group: float


@dataclass(frozen=True)
class Admission:
    """Admits sessions as long as a response stays within the objective.

    With n sessions that share one worker evenly, work for a response shares the worker with the load of the
    n - 1 others (processor sharing: time alone / (1 - their load)); then it waits for its place in playback,
    a group at most.

    Parameters
    ----------
    cost : Cost
    objective : float
        Seconds of response that nine updates of ten shall keep.
    slots : int
        Sessions at most, whatever they cost.
    """

    cost: Cost
    objective: float
    slots: int

    def response(self, sessions: int) -> float:
        """Predicted response in seconds when `sessions` run; infinite when they cannot keep up."""
        if sessions > 1 and sessions * self.cost.load > _HEADROOM:
            return float("inf")
        left = 1 - (sessions - 1) * self.cost.load
        return self.cost.response / left + self.cost.group

    @property
    def sessions(self) -> int:
        """How many sessions are admitted."""
        return next(n for n in range(1, self.slots + 1) if self.refusal(n) is not None)

    def refusal(self, active: int) -> str | None:
        """Say why a session on top of `active` ones is refused; None when it is admitted.

        The first is always admitted: nobody's objective suffers.
        """
        if active >= self.slots:
            return f"all {self.slots} slots are taken"
        if active and self.response(active + 1) > self.objective:
            return f"{active + 1} sessions would not keep the latency objective of {self.objective:g} s"
        return None
