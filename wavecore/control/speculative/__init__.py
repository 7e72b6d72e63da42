"""The speculative sampling controller: generate far ahead, commit late, answer a new condition at once."""

from wavecore.control.speculative.accounting import Totals, UpdateRecord
from wavecore.control.speculative.adapters import (
    ADAPTERS,
    Adapter,
    BoundaryImage,
    CallCost,
    CleanPrefill,
    Keyframes,
    LatentInput,
    RetainedPrefix,
    UnitCosts,
)
from wavecore.control.speculative.controller import Controller
from wavecore.control.speculative.estimators import Estimator, QuantileEstimator
from wavecore.control.speculative.settings import FALLBACKS, Settings
from wavecore.control.speculative.state import Horizon

__all__ = [
    "ADAPTERS",
    "FALLBACKS",
    "Adapter",
    "BoundaryImage",
    "CallCost",
    "CleanPrefill",
    "Controller",
    "Estimator",
    "Horizon",
    "Keyframes",
    "LatentInput",
    "QuantileEstimator",
    "RetainedPrefix",
    "Settings",
    "Totals",
    "UnitCosts",
    "UpdateRecord",
]
