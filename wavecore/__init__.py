"""Real-time, interactive video diffusion."""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_SUBMODULES = ("cache", "control", "media", "metrics", "models", "ops", "placement", "rounds")

__all__ = ["__version__", "load", *_SUBMODULES]


def __getattr__(name: str) -> Any:
    """Import a submodule at its first use, so that `import wavecore` itself stays light."""
    if name in _SUBMODULES:
        return importlib.import_module(f"wavecore.{name}")
    if name == "load":
        from wavecore.pipeline import load

        return load
    raise AttributeError(f"module 'wavecore' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
