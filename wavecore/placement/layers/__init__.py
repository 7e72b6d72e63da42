"""Placement `layers`: contiguous layer ranges over the processes of a ring (StreamDiffusionV2)."""

from wavecore.placement.layers.codec import RingVAE
from wavecore.placement.layers.ring import Ring
from wavecore.placement.layers.stream import RingPlacement

__all__ = ["Ring", "RingPlacement", "RingVAE"]
