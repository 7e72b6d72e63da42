"""What a placement will do, before it runs: costs, rounds in virtual time, the best use of devices."""

from wavecore.plan.costs import DEVICES, MODELS, Device, LinearCost, Model
from wavecore.plan.planner import best_plan, plans
from wavecore.plan.problem import Assignment, Plan
from wavecore.plan.simulate import Exchange, Result, Span, simulate

__all__ = [
    "DEVICES",
    "MODELS",
    "Assignment",
    "Device",
    "Exchange",
    "LinearCost",
    "Model",
    "Plan",
    "Result",
    "Span",
    "best_plan",
    "plans",
    "simulate",
]
