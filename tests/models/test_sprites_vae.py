"""The sprites VAE streams as it codes whole clips."""

import numpy as np
import pytest
import torch

from wavecore.errors import UsageError
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.train.codec import fit_linear


@pytest.fixture(scope="module")
def vae():
    torch.manual_seed(0)
    model = SpritesVAE()
    fit_linear(model, np.random.default_rng(0), clips=12)
    torch.nn.init.normal_(model.refine[-1].weight, std=0.02)
    return model.eval().requires_grad_(False)


def test_fold_and_unfold_are_inverse():
    group = torch.randn(2, 3, 4, 16, 24)
    assert torch.equal(SpritesVAE.unfold(SpritesVAE.fold(group)), group)


@pytest.mark.parametrize("frames", [1, 5, 13])
def test_streaming_equals_whole_clips(vae, frames):
    video = torch.rand(1, 3, frames, 64, 32) * 2 - 1
    latents = vae.encode(video)
    assert latents.shape == (1, 16, 1 + (frames - 1) // 4, 8, 4)
    decoder = vae.stream_decoder()
    pieces = [decoder(latent) for latent in latents.split(1, 2)]
    assert [piece.shape[2] for piece in pieces] == [1, *[4] * (latents.shape[2] - 1)]
    assert torch.equal(torch.cat(pieces, 2), vae.decode(latents))


def test_a_restored_decoder_repeats_itself(vae):
    latents = torch.randn(1, 16, 4, 4, 4)
    decoder = vae.stream_decoder()
    decoder(latents[:, :, :1])
    state = decoder.snapshot()
    first = decoder(latents[:, :, 1:2])
    decoder(latents[:, :, 2:3])
    decoder.restore(state)
    assert torch.equal(decoder(latents[:, :, 1:2]), first)


def test_latents_have_unit_mean_variance_on_what_they_were_fitted_to(vae):
    from wavecore.train.codec import random_groups

    latents = vae.encode_group(random_groups(np.random.default_rng(0), 12).flatten(0, 1))
    assert latents.square().mean().item() == pytest.approx(1, abs=0.01)


def test_wrong_frame_counts_and_sizes_are_named(vae):
    encoder = vae.stream_encoder()
    with pytest.raises(UsageError, match="frames: expected 1 in this call, got 4"):
        encoder(torch.zeros(1, 3, 4, 16, 16))
    with pytest.raises(UsageError, match=r"multiples of 8, got \(12, 16\)"):
        encoder(torch.zeros(1, 3, 1, 12, 16))
    for frames in (0, 3):
        with pytest.raises(UsageError, match=r"video: expected \[b, 3, 1 \+ 4 \* k"):
            vae.encode(torch.zeros(1, 3, frames, 16, 16))
