"""How long a call takes to each of its groups (Ĉ), how much margin to leave (ε), how early to refill (η)."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import Protocol

from wavecore.control.clock import nanoseconds
from wavecore.errors import UsageError


class Estimator(Protocol):
    """What the guards ask for, in nanoseconds. The controller holds the last valid answer."""

    def latencies(self) -> Sequence[float] | None:
        """From launch to each latent of a call deliverable, trimmed ones included; None while unknown."""

    def margin(self) -> float:
        """Safety margin ε."""

    def lead(self, need: int) -> float:
        """Refill lead η, for a call that needs `need` nanoseconds before its first deadline (ε included)."""

    def observe(self, latent: int, latency: int, bootstrap: bool) -> None:
        """Learn that a latent of a call was deliverable `latency` after the launch of its job."""

    def observe_cut(self, latency: int) -> None:
        """Learn the same of the first group of a call that took the place of one that was cut."""

    def cut_delay(self) -> float | None:
        """How much longer a call takes to its first group where it cuts another; None while unknown."""

    def due(self, groups: int, missed: int) -> None:
        """Learn that `groups` groups were due, of which `missed` were not ready."""


class RunningQuantile:
    """Quantile of the latest values.

    Parameters
    ----------
    quantile : float
    window : int
        Values kept.
    """

    def __init__(self, quantile: float, window: int) -> None:
        self._quantile, self._window = quantile, window
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, value: int) -> None:
        """Take a value; the oldest makes room."""
        recent, ordered = self._recent, self._sorted
        if len(recent) == self._window:
            del ordered[bisect_left(ordered, recent.popleft())]
        recent.append(value)
        insort(ordered, value)

    @property
    def largest(self) -> int:
        """Of the values kept; 0 without any."""
        return self._sorted[-1] if self._sorted else 0

    @property
    def value(self) -> int:
        """The value that the share `quantile` does not exceed."""
        count = len(self._sorted)
        return self._sorted[min(int(self._quantile * count), count - 1)]


class QuantileEstimator:
    """Running quantiles of measured latencies, with a fixed or an adaptive margin.

    Parameters
    ----------
    latents : int
        Latents of one call; measurements are kept for each of them.
    prior : sequence of float, optional
        Seconds to each latent before anything is measured. Left out: the bootstrap call is the prior.
    quantile : float
        Of the latest measurements of a latent.
    window : int
        Measurements kept for each latent.
    warmup : int
        Until a latent has this many measurements its estimate is the largest of its prior and of what was
        measured, times `warmup_factor`: a quantile of a few values promises too much.
    warmup_factor : float
    margin : float
        ε in seconds; where an adaptive margin begins.
    lead : float, optional
        η in seconds. Left out: what a call at the append position needs (margin included), plus ε once more
        for the time that passes between the guard and the launch.
    target : float, optional
        Share of the groups due that may be missing. The margin is then adapted to hold it: stochastic
        approximation of a quantile (Robbins and Monro, 1951), ε += step * (missed - target) for every
        group that is due, within [0, `margin_limit`].
    step : float
        Seconds by which a missed group widens an adaptive margin.
    margin_limit : float
        Seconds.
    """

    def __init__(
        self,
        latents: int,
        prior: Sequence[float] | None = None,
        *,
        quantile: float = 0.95,
        window: int = 64,
        warmup: int = 8,
        warmup_factor: float = 1.25,
        margin: float = 0.02,
        lead: float | None = None,
        target: float | None = None,
        step: float = 0.02,
        margin_limit: float = 2.0,
    ) -> None:
        for name, count, least in (("latents", latents, 1), ("window", window, 1), ("warmup", warmup, 0)):
            if count < least:
                raise UsageError(f"{name}: expected at least {least}, got {count}")
        if not 0 < quantile <= 1:
            raise UsageError(f"quantile: expected a number within (0, 1], got {quantile}")
        if target is not None and not 0 < target < 1:
            raise UsageError(f"target: expected a number within (0, 1), got {target}")
        if not 1 <= warmup_factor < float("inf"):
            raise UsageError(f"warmup_factor: expected a finite number of at least 1, got {warmup_factor}")
        if prior is not None and len(prior) != latents:
            raise UsageError(f"prior: expected {latents} values, one for each latent, got {len(prior)}")
        self._prior = None if prior is None else [nanoseconds(value, "prior") for value in prior]
        self._bootstrap: list[int | None] = [None] * latents
        self._warmup, self._factor = warmup, warmup_factor
        self._margin = nanoseconds(margin, "margin")
        self._lead = None if lead is None else nanoseconds(lead, "lead")
        self._target = target
        self._step = nanoseconds(step, "step")
        self._limit = nanoseconds(margin_limit, "margin_limit")
        self._measured = [RunningQuantile(quantile, window) for _ in range(latents)]
        self._cut_delays = RunningQuantile(quantile, window)
        self._estimates = None if self._prior is None else [self._warm(m) for m in range(latents)]

    def latencies(self) -> Sequence[int] | None:
        """Ĉ_m for each group, or None before the first measurement without a prior."""
        return self._estimates

    def margin(self) -> int:
        """ε as it is now."""
        return self._margin

    def lead(self, need: int) -> int:
        """η."""
        return need + self._margin if self._lead is None else self._lead

    def observe(self, latent: int, latency: int, bootstrap: bool) -> None:
        """Take a measurement; one of the bootstrap call, which has no context, serves as a prior only."""
        if latency < 0:
            raise UsageError(f"latency: expected 0 or more nanoseconds, got {latency}")
        if bootstrap:
            if self._prior is None:
                self._bootstrap[latent] = latency
                if None not in self._bootstrap:
                    self._prior = [value or 0 for value in self._bootstrap]
                    self._estimates = [self._warm(m) for m in range(len(self._prior))]
            return
        measured = self._measured[latent]
        measured.add(latency)
        if self._estimates is not None:
            enough = len(measured) >= self._warmup
            self._estimates[latent] = measured.value if enough else self._warm(latent)

    def observe_cut(self, latency: int) -> None:
        """Take the time to the first group of a call that cut another; what it is above Ĉ is the delay."""
        if self._estimates is not None:
            self._cut_delays.add(max(latency - self._estimates[0], 0))

    def cut_delay(self) -> int | None:
        """Quantile of the delays; the largest one, with a reserve, until there are `warmup` of them."""
        delays = self._cut_delays
        if len(delays) >= max(self._warmup, 1):
            return delays.value
        return round(delays.largest * self._factor) if delays else None

    def due(self, groups: int, missed: int) -> None:
        """Adapt the margin, if it is adaptive."""
        if self._target is not None:
            change = self._step * (missed - groups * self._target)
            self._margin = min(max(self._margin + round(change), 0), self._limit)

    def _warm(self, latent: int) -> int:
        assert self._prior is not None
        largest = max(self._prior[latent], self._measured[latent].largest)
        return round(largest * self._factor) if self._warmup else largest
