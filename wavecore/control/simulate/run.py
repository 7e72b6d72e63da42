"""Runs the controller in virtual time against a simulated worker."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np

from wavecore.control.clock import SECOND, VirtualClock, nanoseconds
from wavecore.control.simulate.arrivals import Arrivals
from wavecore.control.simulate.costs import ConstantCost, CostModel, LognormalCost
from wavecore.control.simulate.wave import WaveCosts, WaveWorker
from wavecore.control.speculative import (
    Adapter,
    CallCost,
    Controller,
    QuantileEstimator,
    RetainedPrefix,
    Settings,
    Totals,
    UnitCosts,
    UpdateRecord,
)
from wavecore.control.speculative.events import (
    Cancel,
    Cancelled,
    Fallback,
    Finish,
    Launch,
    Output,
    Ready,
    Settled,
    Update,
)
from wavecore.control.speculative.runner import Item, Runner
from wavecore.errors import UsageError

_QUANTILES = {"p50": 50, "p90": 90, "p99": 99}


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """What is simulated.

    Parameters
    ----------
    adapter : Adapter
    costs : UnitCosts or WaveCosts
    group_seconds : float or Fraction
        δ.
    cut : bool
        Whether a prompt cuts a wave that is under way.
    spread : float
        Coefficient of variation of the time of a call; 0 for constant costs, which are then known.
    margin : float
        ε in seconds.
    target : float, optional
        Underrun rate that an adaptive margin holds.
    fallback : str
    seed : int
    """

    adapter: Adapter
    costs: UnitCosts | WaveCosts
    group_seconds: float | Fraction
    cut: bool = False
    spread: float = 0.0
    margin: float = 0.0
    target: float | None = None
    fallback: Fallback = "freeze"
    seed: int = 0

    def __post_init__(self) -> None:
        if isinstance(self.costs, WaveCosts):
            if self.spread:
                raise UsageError(f"spread: expected 0 with the costs of a wave, got {self.spread}")
            if self.adapter.overlap:
                raise UsageError(f"adapter: expected one that makes waves, got {self.adapter.name}")
        elif self.cut:
            raise UsageError("cut: expected the costs of a wave, got those of a call of one piece")

    @property
    def generation(self) -> float:
        """C: seconds from launch to the first group deliverable, at constant cost."""
        return self._cost.ready[0]

    @property
    def period(self) -> float:
        """T: seconds that the new groups of a call play."""
        return float(self.adapter.playable(self._later) * self.group_seconds)

    @property
    def load(self) -> float:
        """C_DiT / T: the load without waste."""
        return float(self._cost.denoise / self.period)

    def chunked(self) -> Scenario:
        """The fixed-chunk reference: all latents of a call are one group, handed over together.

        With the refill lead of constant costs a call starts at nT - C, the latest moment, so that it
        follows the latest condition.
        """
        cost = self._cost
        ready = cost.ready[-1]
        denoise = min(cost.prepare + cost.denoise, ready)
        whole = UnitCosts(denoise=denoise, decode=ready - denoise, store=cost.finish - ready)
        group = Fraction(self.period)
        return replace(self, adapter=RetainedPrefix(1), costs=whole, cut=False, group_seconds=group)

    def controller(self) -> Controller:
        """Make the controller."""
        latents, ready = self.adapter.latents, self._cost.ready
        prior = (ready[0],) * (latents - len(ready)) + ready
        estimator = QuantileEstimator(
            latents,
            prior,
            margin=self.margin,
            target=self.target,
            warmup=8 if self.spread else 0,
        )
        settings = Settings(
            adapter=self.adapter,
            group_seconds=self.group_seconds,
            fallback=self.fallback,
            cut_every=self.costs.chunk_latents if self.cut and isinstance(self.costs, WaveCosts) else None,
        )
        return Controller(settings, estimator)

    def cost_model(self) -> CostModel:
        """Make the model of a worker whose calls are of one piece."""
        assert isinstance(self.costs, UnitCosts)
        constant = ConstantCost(self.adapter, self.costs)
        return LognormalCost(constant, self.spread, self.seed) if self.spread else constant

    @property
    def _later(self) -> int:
        """A position with everything before it that an adapter regenerates."""
        return self.adapter.overlap or 1

    @property
    def _cost(self) -> CallCost:
        if isinstance(self.costs, WaveCosts):
            return self.costs.call(self.adapter.latents)
        return ConstantCost(self.adapter, self.costs).draw(self._later)


@dataclass(frozen=True)
class Result:
    """What a simulation gave.

    Attributes
    ----------
    scenario : Scenario
    records : list of UpdateRecord
        In the order in which they were settled.
    totals : Totals
    """

    scenario: Scenario
    records: list[UpdateRecord]
    totals: Totals

    def seconds(self, part: str) -> np.ndarray:
        """`response`, `wait`, `generation` or `alignment` of the displayed updates, in seconds."""
        shown = [record for record in self.records if record.outcome == "displayed"]
        return np.array([getattr(record, part) for record in shown], np.float64) / SECOND

    def summary(self) -> dict[str, Any]:
        """Distributions and counts, JSON values."""
        parts = ("response", "wait", "generation", "alignment")
        return {
            "updates": len(self.records),
            **{part: _distribution(self.seconds(part)) for part in parts},
            "load": self.totals.amplification * self.scenario.load,
            "totals": self.totals.as_dict(),
        }


def simulate(scenario: Scenario, arrivals: Arrivals, watch: Callable[[Output], None] | None = None) -> Result:
    """Simulate until every update has been settled.

    Parameters
    ----------
    scenario : Scenario
    arrivals : Arrivals
    watch : callable, optional
        Gets every output of the controller.
    """
    simulation = _Simulation(scenario, arrivals, watch)
    simulation.run()
    totals = copy.deepcopy(simulation.runner.controller.totals)
    return Result(scenario, simulation.records, totals)


class _Simulation:
    """A worker whose calls take the time that the cost model draws, and updates as they arrive."""

    def __init__(
        self, scenario: Scenario, arrivals: Arrivals, watch: Callable[[Output], None] | None
    ) -> None:
        self.records: list[UpdateRecord] = []
        self.clock: VirtualClock[Item] = VirtualClock()
        self.runner = Runner(scenario.controller(), self.clock, self._perform)
        costs = scenario.costs
        self._wave = WaveWorker(costs, self.clock) if isinstance(costs, WaveCosts) else None
        self._costs = None if isinstance(costs, WaveCosts) else scenario.cost_model()
        self._arrivals = arrivals
        self._watch = watch
        self._open = self._asked = 0

    def run(self) -> None:
        self.clock.post(partial(Update, condition=0))
        controller = self.runner.controller
        while not controller.closed and (self._open or not self._arrivals.exhausted):
            self.runner.step()
        if controller.closed:
            raise UsageError("simulate: the simulated worker failed too often")

    def _perform(self, output: Output) -> None:
        if isinstance(output, Launch):
            self._work(output)
        elif isinstance(output, Settled):
            self._open -= 1
            self.records.append(output.record)
        elif isinstance(output, Cancel):
            self.clock.post(partial(Cancelled, job=output.job))
        delay = self._arrivals.after(output)
        if delay is not None:
            self._ask(delay)
        if self._watch is not None:
            self._watch(output)

    def _work(self, launch: Launch) -> None:
        if self._wave is not None:
            self._wave.launch(launch)
            return
        assert self._costs is not None
        cost = self._costs.draw(launch.position)
        for group, seconds in enumerate(cost.ready):
            self.clock.post(partial(Ready, job=launch.job, group=group), nanoseconds(seconds), rank=0)
        self.clock.post(partial(Finish, job=launch.job), nanoseconds(cost.finish), rank=1)

    def _ask(self, delay: int) -> None:
        self._open += 1
        self.clock.post(self._arrive, delay, rank=2)

    def _arrive(self, time: int) -> Update:
        delay = self._arrivals.after_arrival()
        if delay is not None:
            self._ask(delay)
        self._asked += 1
        return Update(time, self._asked)


def _distribution(values: Sequence[float] | np.ndarray) -> dict[str, float] | None:
    if not len(values):
        return None
    quantiles = {name: float(np.percentile(values, at)) for name, at in _QUANTILES.items()}
    return {"mean": float(np.mean(values)), **quantiles, "max": float(np.max(values))}
