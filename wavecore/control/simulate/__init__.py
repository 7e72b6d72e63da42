"""The controller in virtual time: arrivals, costs, results, the laws of the specification."""

from wavecore.control.simulate.arrivals import (
    Arrivals,
    GeometricArrivals,
    IsolatedArrivals,
    PoissonArrivals,
    stratified,
)
from wavecore.control.simulate.costs import ConstantCost, CostModel, LognormalCost
from wavecore.control.simulate.run import Result, Scenario, simulate
from wavecore.control.simulate.wave import WaveCosts

__all__ = [
    "Arrivals",
    "ConstantCost",
    "CostModel",
    "GeometricArrivals",
    "IsolatedArrivals",
    "LognormalCost",
    "PoissonArrivals",
    "Result",
    "Scenario",
    "WaveCosts",
    "simulate",
    "stratified",
]
