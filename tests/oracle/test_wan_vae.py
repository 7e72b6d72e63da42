"""The Wan VAE against diffusers' `AutoencoderKLWan` with the same weights."""

from __future__ import annotations

import diffusers
import pytest
import torch

from wavecore.models.checkpoint_names import convert_state_dict
from wavecore.models.wan_vae import WanVAE, WanVAEConfig


@pytest.fixture(scope="module")
def pair():
    torch.manual_seed(0)
    theirs = diffusers.AutoencoderKLWan(
        base_dim=8,
        z_dim=16,
        dim_mult=[1, 2, 4, 4],
        num_res_blocks=1,
        attn_scales=[],
        temperal_downsample=[False, True, True],
        dropout=0.0,
    ).eval()
    ours = WanVAE(WanVAEConfig(base_dim=8, num_res_blocks=1))
    ours.load_state_dict(convert_state_dict(theirs.state_dict(), "original"))
    return ours, theirs


def _statistics(theirs):
    mean = torch.tensor(theirs.config.latents_mean).view(1, -1, 1, 1, 1)
    return mean, torch.tensor(theirs.config.latents_std).view(1, -1, 1, 1, 1)


@pytest.mark.parametrize("frames", [1, 5, 13])
@torch.inference_mode()
def test_encode_equals_diffusers(pair, frames):
    ours, theirs = pair
    video = torch.rand(2, 3, frames, 32, 24) * 2 - 1
    mean, std = _statistics(theirs)
    expected = (theirs.encode(video).latent_dist.mode() - mean) / std
    error = (ours.encode(video) - expected).abs().max().item()
    print(f"encode, {frames} frames: max error {error:.1e} at std {expected.std():.2f}")
    assert error <= 1e-5


@pytest.mark.parametrize("latents", [1, 2, 4])
@torch.inference_mode()
def test_decode_equals_diffusers(pair, latents):
    ours, theirs = pair
    z = torch.randn(2, 16, latents, 4, 3)
    mean, std = _statistics(theirs)
    expected = theirs.decode(z * std + mean).sample
    assert expected.shape[2] == 1 + 4 * (latents - 1)
    error = (ours.decode(z) - expected).abs().max().item()
    print(f"decode, {latents} latents: max error {error:.1e} at std {expected.std():.2f}")
    assert error <= 1e-5


def test_published_constants():
    config = diffusers.AutoencoderKLWan(base_dim=8, num_res_blocks=1).config
    assert WanVAEConfig().latents_mean == tuple(config.latents_mean)
    assert WanVAEConfig().latents_std == tuple(config.latents_std)


def test_diffusers_names_of_the_published_size():
    with torch.device("meta"):
        ours, theirs = WanVAE(), diffusers.AutoencoderKLWan()
    renamed = convert_state_dict(ours.state_dict(), "diffusers")
    assert {k: v.shape for k, v in renamed.items()} == {k: v.shape for k, v in theirs.state_dict().items()}
    assert convert_state_dict(theirs.state_dict(), "original").keys() == ours.state_dict().keys()
