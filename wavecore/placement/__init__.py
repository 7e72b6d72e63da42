"""Where a round runs."""

from wavecore.placement.handoff import Handoff, renoise
from wavecore.placement.interface import Place, RoundPlacement
from wavecore.placement.local import LocalPlacement, local_cache

__all__ = ["Handoff", "LocalPlacement", "Place", "RoundPlacement", "local_cache", "renoise"]
