"""Training on live sources: what is seen moves as what is asked for, behind noise after that motion."""

from itertools import islice

import numpy as np
import pytest
import torch

from wavecore.models.dit import CausalWanDiT
from wavecore.models.sprites import SPRITES_DEFAULTS
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.train.codec import fit_linear
from wavecore.train.denoiser import SPRITES_DIT, DenoiserSettings, DenoiserTraining, batch_loss
from wavecore.train.live import AROUND, LIVE_LATENTS, SPAN, live_batches, make_live_clip

LOWEST = SPRITES_DEFAULTS.strength - SPAN


@pytest.fixture(scope="module")
def vae():
    model = SpritesVAE()
    fit_linear(model, np.random.default_rng(0), clips=12)
    return model.requires_grad_(False)


def test_source_and_target_move_alike_and_fast_motion_has_less_noise(vae):
    generator = np.random.default_rng(2)
    clips = [make_live_clip(vae, generator) for _ in range(12)]
    same_background = 0
    for clip in clips:
        assert clip.latents.shape == clip.source.shape == (16, LIVE_LATENTS, 16, 16)
        assert not torch.equal(clip.latents, clip.source)
        difference = (clip.latents - clip.source).float().abs().amax(0)
        same_background += int(difference[~clip.subject].max() < 0.01)
        assert LOWEST <= clip.strength <= SPRITES_DEFAULTS.strength
    assert 3 <= same_background <= 9
    motion = [float(clip.source.float().diff(dim=1).square().mean((0, 2, 3)).sqrt().max()) for clip in clips]
    ordered = np.array([clip.strength for clip in clips])[np.argsort(motion)]
    assert (np.diff(ordered) < 0.01).all() and ordered[0] > ordered[-1] + 0.1


def test_batches_have_one_level_a_clip_and_read_as_a_stream_batch(vae):
    torch.manual_seed(0)
    dit, text = CausalWanDiT(SPRITES_DIT), SpritesTextEncoder(SPRITES_DIT.text_dim)
    generator = np.random.default_rng(4)
    batches = list(islice(live_batches(vae, dit, text, 3 * LIVE_LATENTS, 4, 6.0, generator), 8))
    later = 0
    for batch in batches:
        assert batch.noisy.shape == batch.target.shape == (3, 16, LIVE_LATENTS, 16, 16)
        assert batch.chunk_frames == 1 and batch.timesteps.shape == (3, LIVE_LATENTS)
        assert (batch.timesteps == batch.timesteps[:, :1]).all()
        level = batch.timesteps[:, 0] / 1000
        assert (level > 0).all() and (level <= SPRITES_DEFAULTS.strength + AROUND).all()
        later += int((level < LOWEST - AROUND).any())
        loss, _ = batch_loss(dit, text, batch)
        assert loss.requires_grad and torch.isfinite(loss)
    assert 0 < later < len(batches)  # some have been denoised once already


def test_a_run_of_live_steps_alone_changes_the_model(vae, tmp_path):
    training = DenoiserTraining(tmp_path, vae, DenoiserSettings(chunks=3, pool=4, live=1.0, live_from=0.0))
    before = training.dit.blocks[0].self_attn.q.weight.detach().clone()
    training.run(max_steps=2)
    assert training.step == 2 and not torch.equal(before, training.dit.blocks[0].self_attn.q.weight)
