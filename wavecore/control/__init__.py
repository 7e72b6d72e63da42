"""When work is done and under which condition (no torch): clocks, live streams, speculative sampling."""

from wavecore.control.streaming import partition

__all__ = ["partition"]
