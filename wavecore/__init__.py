"""Real-time, interactive video diffusion."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavecore import cache, control, media, metrics, models, ops, placement, rounds
    from wavecore.loading import load

__version__ = "0.1.0"

__all__ = [
    "__version__",
    "cache",
    "control",
    "load",
    "media",
    "metrics",
    "models",
    "ops",
    "placement",
    "rounds",
]


def __getattr__(name: str) -> Any:
    """Import a submodule at its first use, so that `import wavecore` itself stays light."""
    if name == "load":
        from wavecore.loading import load

        return load
    if name in __all__:
        return importlib.import_module(f"wavecore.{name}")
    raise AttributeError(f"module 'wavecore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
