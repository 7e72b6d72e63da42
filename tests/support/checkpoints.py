"""Small checkpoints, good and broken."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from wavecore.errors import CheckpointError
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.taehv import TAEHVConfig
from wavecore.models.wan_vae import WanVAE, WanVAEConfig

DIT = DiTConfig(
    dim=128, heads=1, layers=2, ffn_dim=24, text_dim=10, frequency_dim=8, in_channels=4, out_channels=4
)
VAE = WanVAEConfig(base_dim=4, num_res_blocks=1)
TINY = TAEHVConfig(latent_channels=5, encoder_width=8, decoder_widths=(16, 12, 8, 6))


def dit_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(CausalWanDiT(DIT).state_dict())


def vae_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return dict(WanVAE(VAE).state_dict())


def same(model, state) -> bool:
    loaded = model.state_dict()
    return loaded.keys() == state.keys() and all(torch.equal(loaded[k], state[k]) for k in state)


def fault(load, source, *named: str) -> str:
    """The one line of a fault; it has to hold all of `named`."""
    with pytest.raises(CheckpointError) as raised:
        load(source)
    line = str(raised.value)
    assert "\n" not in line
    assert len(line) < 600
    for part in named:
        assert part in line, line
    return line


def write_shards(folder, state, count=2):
    """Shards and their index; returns the index."""
    keys = list(state)
    names = [f"diffusion_pytorch_model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]
    weight_map = {}
    for i, name in enumerate(names):
        part = {key: state[key] for key in keys[i::count]}
        save_file(part, folder / name)
        weight_map |= dict.fromkeys(part, name)
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return index
