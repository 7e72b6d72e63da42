"""Small random models, causal and bidirectional."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.pipeline import Pipeline


@pytest.fixture(scope="session")
def model():
    """Every parameter matters, so that a wrong context shows in the frames."""
    torch.manual_seed(0)
    dit = CausalWanDiT(
        DiTConfig(dim=32, heads=2, layers=2, ffn_dim=64, patch=(1, 4, 4), text_dim=16, prediction="x0")
    )
    for parameter in dit.parameters():
        scale = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        parameter.data = torch.randn(parameter.shape) * scale
    modules = dit, SpritesVAE(width=16, blocks=1), SpritesTextEncoder(16, buckets=256, layers=1, heads=2)
    for module in modules:
        module.eval().requires_grad_(False)
    defaults = StreamDefaults(size=(64, 32), fps=16, shift=5.0, anchor_chunks=0, history=1, store_history=2)
    return StreamModel("tiny", *modules, defaults)


@pytest.fixture(scope="session")
def pipe(model):
    return Pipeline(model)


@pytest.fixture(scope="session")
def joint_pipe(model):
    return Pipeline(replace(model, name="tiny joint", defaults=replace(model.defaults, joint_latents=6)))
