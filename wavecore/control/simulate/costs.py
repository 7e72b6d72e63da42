"""How long a simulated call takes."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np

from wavecore.control.speculative import Adapter, CallCost, UnitCosts
from wavecore.errors import UsageError


class CostModel(Protocol):
    """Draws the time of one call."""

    def draw(self, position: int) -> CallCost:
        """Return the cost of a call at `position`."""


class ConstantCost:
    """Every call takes what the adapter's cost split says.

    Parameters
    ----------
    adapter : Adapter
    costs : UnitCosts
    """

    def __init__(self, adapter: Adapter, costs: UnitCosts) -> None:
        self._adapter, self._costs = adapter, costs
        self._by_trim: dict[int, CallCost] = {}

    def draw(self, position: int) -> CallCost:
        """Return the cost of a call at `position`."""
        trimmed = self._adapter.trimmed(position)
        if trimmed not in self._by_trim:
            retained = self._adapter.latents if position else 0  # each latent is prefilled once
            self._by_trim[trimmed] = self._adapter.cost(self._costs, position, retained)
        return self._by_trim[trimmed]


class LognormalCost:
    """The constant cost times a lognormal factor of mean 1, drawn for each call.

    Parameters
    ----------
    constant : ConstantCost
    spread : float
        Coefficient of variation: standard deviation over mean.
    seed : int
    """

    def __init__(self, constant: ConstantCost, spread: float, seed: int) -> None:
        if not 0 <= spread < math.inf:
            raise UsageError(f"spread: expected a finite number, 0 or more, got {spread}")
        self._constant = constant
        self._sigma = math.sqrt(math.log1p(spread**2))
        self._random = np.random.default_rng(seed)

    def draw(self, position: int) -> CallCost:
        """Return the cost of a call at `position`."""
        cost = self._constant.draw(position)
        factor = float(self._random.lognormal(-(self._sigma**2) / 2, self._sigma))
        ready = tuple(factor * value for value in cost.ready)
        return CallCost(
            factor * cost.prepare, factor * cost.denoise, factor * cost.store, ready, factor * cost.finish
        )
