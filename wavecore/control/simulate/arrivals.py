"""When simulated updates arrive.

Random numbers are stratified: of n values, one lies in each n-th of the distribution, in random order.
Means then settle with far fewer arrivals than with independent draws, and each value is still distributed
as it should be.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import numpy as np

from wavecore.control.clock import SECOND
from wavecore.control.speculative.events import Begin, Display, Launch, Output, Settled
from wavecore.errors import UsageError


def stratified(count: int, seed: int) -> np.ndarray:
    """Return `count` numbers within (0, 1), one in each of `count` equal intervals, in random order."""
    random = np.random.default_rng(seed)
    return (random.permutation(count) + random.uniform(1e-9, 1 - 1e-9, count)) / count


class Arrivals(Protocol):
    """Decides when the next update arrives by what the controller does."""

    exhausted: bool
    """Whether no further update will come."""

    def after(self, output: Output) -> int | None:
        """Return nanoseconds from now to an update, if this output leads to one."""

    def after_arrival(self) -> int | None:
        """Return nanoseconds from one update to the next, if that alone decides."""


class _Delays:
    """Delays that run out.

    Parameters
    ----------
    delays : ndarray of float
        Seconds.
    """

    def __init__(self, delays: np.ndarray) -> None:
        self._delays: Iterator[int] = iter((delays * SECOND).astype(np.int64).tolist())
        self.exhausted = False

    def _next(self) -> int | None:
        delay = next(self._delays, None)
        self.exhausted = delay is None
        return delay


class IsolatedArrivals(_Delays):
    """One update at a time, at a uniform phase of the refill period.

    The next one is placed after the first refill that follows the fate of the one before.

    Parameters
    ----------
    count : int
    period : float
        Seconds from one refill to the next, K δ for an adapter that trims nothing.
    seed : int
    first, length : float
        Part of the period in which updates arrive, as seconds after the launch of the refill; the whole
        period by default.
    """

    def __init__(
        self, count: int, period: float, seed: int, first: float = 0.0, length: float | None = None
    ) -> None:
        super().__init__(first + stratified(count, seed) * (period if length is None else length))
        self._settled = True

    def after(self, output: Output) -> int | None:
        """Place the next update behind a refill."""
        if isinstance(output, Settled):
            self._settled = True
        elif self._settled and isinstance(output, Launch) and output.reason in ("refill", "late"):
            self._settled = False
            return self._next()
        return None

    def after_arrival(self) -> None:
        """Nothing: the fate of the update decides."""


class PoissonArrivals(_Delays):
    """Updates at a constant rate, whatever the controller does.

    Parameters
    ----------
    count : int
    rate : float
        λ, updates per second of playback.
    seed : int
    """

    def __init__(self, count: int, rate: float, seed: int) -> None:
        if not 0 < rate < math.inf:
            raise UsageError(f"rate: expected a finite number above 0, got {rate}")
        super().__init__(-np.log1p(-stratified(count, seed)) / rate)

    def after(self, output: Output) -> int | None:
        """Begin with playback."""
        return self._next() if isinstance(output, Begin) else None

    def after_arrival(self) -> int | None:
        """Draw the next gap."""
        return self._next()


class GeometricArrivals:
    """After every position shown, an update with probability p.

    Parameters
    ----------
    count : int
        Updates; with p = 0 there are none, and the arrivals are over after `count` positions.
    probability : float
        p.
    seed : int
    """

    def __init__(self, count: int, probability: float, seed: int) -> None:
        if not 0 <= probability <= 1:
            raise UsageError(f"probability: expected a number within [0, 1], got {probability}")
        if probability == 0:
            gaps = np.full(1, count)
        elif probability == 1:
            gaps = np.ones(count)
        else:  # the quantiles of Pr(gap <= g) = 1 - (1 - p)^g
            gaps = np.ceil(np.log1p(-stratified(count, seed)) / np.log1p(-probability))
        self._gaps: Iterator[int] = iter(gaps.astype(np.int64).tolist())
        self._never = probability == 0
        self._left = next(self._gaps)
        self.exhausted = False

    def after(self, output: Output) -> int | None:
        """Decide at every display."""
        if self.exhausted or not isinstance(output, Display):
            return None
        self._left -= 1
        if self._left:
            return None
        self._left = next(self._gaps, 0)
        self.exhausted = not self._left
        return None if self._never else 0

    def after_arrival(self) -> None:
        """Nothing: the next display decides."""
