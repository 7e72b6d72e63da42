"""Models: causal Wan DiT, streaming Wan VAE, TAEHV, text encoders, checkpoints."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wavecore.models.checkpoint import convert_checkpoint, load_dit, load_vae, save_model
    from wavecore.models.checkpoint_names import convert_state_dict
    from wavecore.models.dit import WAN_1_3B, WAN_14B, CausalWanDiT, DiTConfig
    from wavecore.models.taehv import TAEHV
    from wavecore.models.text import WanTextEncoder
    from wavecore.models.wan_vae import WanVAE, WanVAEConfig

_HOME = {
    "CausalWanDiT": "dit",
    "DiTConfig": "dit",
    "TAEHV": "taehv",
    "WAN_14B": "dit",
    "WAN_1_3B": "dit",
    "WanTextEncoder": "text",
    "WanVAE": "wan_vae",
    "WanVAEConfig": "wan_vae",
    "convert_checkpoint": "checkpoint",
    "convert_state_dict": "checkpoint_names",
    "load_dit": "checkpoint",
    "load_vae": "checkpoint",
    "save_model": "checkpoint",
}

__all__ = [
    "TAEHV",
    "WAN_1_3B",
    "WAN_14B",
    "CausalWanDiT",
    "DiTConfig",
    "WanTextEncoder",
    "WanVAE",
    "WanVAEConfig",
    "convert_checkpoint",
    "convert_state_dict",
    "load_dit",
    "load_vae",
    "save_model",
]


def __getattr__(name: str) -> Any:
    """Import a model's module at its first use."""
    if name in _HOME:
        return getattr(importlib.import_module(f"wavecore.models.{_HOME[name]}"), name)
    raise AttributeError(f"module 'wavecore.models' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
