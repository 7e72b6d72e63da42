"""Short training runs: they learn, resume where they were, and export a model that loads."""

import json
import re

import numpy as np
import pytest
import torch

from wavecore.models.sprites import load_sprites
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.sprites.caption import COLOUR_WORDS, SHAPE_WORDS, caption
from wavecore.sprites.world import HELD_OUT_PAIRS
from wavecore.train.batch import CHUNK_LATENTS
from wavecore.train.bidirectional import (
    JOINT_LATENTS,
    BidirectionalTraining,
    make_joint_batch,
    make_joint_clip,
)
from wavecore.train.clips import CHUNKS, ClipPool, draw_scenes, encode_frames, make_clip
from wavecore.train.codec import RefinementTraining, fit_linear
from wavecore.train.denoiser import DenoiserSettings, DenoiserTraining, make_batch
from wavecore.train.noise import chunk_sigmas
from wavecore.train.sprites import SpritesTraining


@pytest.fixture(scope="module")
def vae():
    model = SpritesVAE()
    fit_linear(model, np.random.default_rng(0), clips=12)
    return model.requires_grad_(False)


def test_a_clip_from_the_start_is_encoded_as_the_vae_encodes_a_stream(vae):
    from wavecore.source import to_pixels
    from wavecore.sprites.world import Place, Scene, render, track

    frames = render(track([Scene("ball", "red", "sand", "left")] * 9, Place()))
    latents = encode_frames(vae, frames, from_start=True)
    torch.testing.assert_close(latents[None], vae.encode(to_pixels(frames)), atol=1e-5, rtol=0)


def test_clips_have_a_scene_a_chunk_and_a_mask_on_the_subject(vae):
    generator = np.random.default_rng(4)
    for _ in range(4):
        clip = make_clip(vae, generator, from_start=True)
        assert clip.latents.shape == clip.source.shape == (16, CHUNKS * CHUNK_LATENTS, 16, 16)
        assert len(clip.scenes) == CHUNKS
        assert 0.05 < clip.subject.float().mean() < 0.35


def test_windows_begin_a_stream_only_at_a_clips_beginning(vae):
    pool = ClipPool(vae, 4, seed=0)
    for _ in range(6):
        pool.grow()
    for window in pool.sample(4, 2):
        assert window.latents.shape[1] == 2 * CHUNK_LATENTS and len(window.scenes) == 2


@pytest.mark.parametrize("chunks", [1, 2, 3, 6])
@pytest.mark.parametrize("from_start", [True, False])
def test_noise_levels_leave_something_to_learn(chunks, from_start):
    generator = np.random.default_rng(0)
    drawn = np.stack([chunk_sigmas(generator, chunks, from_start) for _ in range(300)])
    assert ((drawn >= 0) & (drawn <= 1)).all()
    assert (drawn > 0).any(1).all()
    if chunks > 1 and not from_start:
        assert (drawn[:, 0] == 0).mean() > 0.9  # the middle of a stream has clean context
    if chunks == 6:
        staircase = [0.0, 0.0, 0.625, 5 / 6, 0.9375, 1.0]
        assert (np.abs(drawn - staircase).max(1) < 1e-9).any()


def rows(path):
    """Rows of a training log."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_training_learns_resumes_and_exports(tmp_path):
    training = SpritesTraining(tmp_path, seed=1)
    training.codec(minutes=0.02)
    assert rows(tmp_path / "vae_log.jsonl")[-1]["minutes"] >= 0.02
    settings = DenoiserSettings(chunks=6, pool=36, warmup_steps=5, seed=1)
    first = DenoiserTraining(tmp_path, training._vae(), settings)
    before = {name: value.clone() for name, value in first.model.state_dict().items()}
    first.run(max_steps=2)
    changed = [n for n, value in first.model.state_dict().items() if not torch.equal(value, before[n])]
    assert len(changed) > 0.9 * len(before)
    again = DenoiserTraining(tmp_path, training._vae(), settings)
    assert again.step == first.step == 2 and again.seconds == first.seconds
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, first.model.state_dict()[name])
    again.run(max_steps=1)
    assert again.step == 3
    assert [row["step"] for row in rows(tmp_path / "log.jsonl")] == [2, 3]  # the end of each run
    weights = training.export()
    model = load_sprites(weights)
    assert model.dit.config == first.dit.config
    assert (tmp_path / "preview.png").stat().st_size > 1000


def test_training_lowers_the_error(vae, tmp_path):
    settings = DenoiserSettings(
        chunks=4, pool=24, warmup_steps=1, seed=2, curriculum=((0.0, (1.0, 0, 0, 0)),)
    )
    training = DenoiserTraining(tmp_path, vae, settings)
    generator = np.random.default_rng(3)
    pool = ClipPool(vae, 4, seed=3)
    for _ in range(4):
        pool.grow()
    batch = make_batch(pool.sample(4, 1), settings, generator)
    first, _ = training._update(batch)
    for _ in range(11):
        last, _ = training._update(batch)
    assert last < 0.7 * first


def test_an_interrupted_run_is_saved(vae, tmp_path):
    def interrupt(row):
        raise KeyboardInterrupt

    refinement = RefinementTraining(tmp_path, SpritesVAE())
    refinement.step = 49
    with pytest.raises(KeyboardInterrupt):
        refinement.run(interrupt, clips=1, groups=1)
    assert RefinementTraining(tmp_path, SpritesVAE()).step == 50
    training = DenoiserTraining(tmp_path, vae, DenoiserSettings(chunks=1, pool=8, seed=2))
    training.step = 48
    with pytest.raises(KeyboardInterrupt):
        training.run(interrupt)
    assert DenoiserTraining(tmp_path, vae, training.settings).step == 50


def test_windows_of_one_chunk_are_mostly_beginnings_in_the_middle(vae):
    pool = ClipPool(vae, 40, seed=0)
    for _ in range(8):
        pool.grow()
    windows = pool.sample(16, 1)
    beginnings = [w for w in windows if w.from_start]
    assert len(windows) == 16 and len(beginnings) >= 12
    for window in beginnings:  # the first latent of a stream: one frame, subject in the middle
        rows, columns = window.subject[0].nonzero().float().mean(0)
        assert abs(rows - 7.5) < 0.6 and abs(columns - 7.5) < 0.6


def test_joint_windows_are_noised_behind_what_is_given(vae):
    generator = np.random.default_rng(0)
    clips = [make_joint_clip(vae, generator) for _ in range(24)]
    assert {clip.given for clip in clips} == {0, 1, 2, 3, 4}
    for latents in (JOINT_LATENTS, 5):
        batch = make_joint_batch(clips, latents, DenoiserSettings(), generator)
        assert batch.noisy.shape == (24, 16, latents, 16, 16)
        for row, clip in enumerate(clips):
            levels = batch.timesteps[row]
            assert (levels[: clip.given] == 0).all() and len(set(levels[clip.given :].tolist())) == 1
            assert (batch.weight[row, 0, : clip.given] == 0).all() and batch.weight[row, 0, -1].min() >= 1
            error = (batch.noisy - batch.target)[row, :, : clip.given]
            assert not clip.given or error.std() < 0.11


def test_the_bidirectional_variant_is_trained_resumed_and_loaded(tmp_path):
    training = SpritesTraining(tmp_path, seed=1)
    training.begin_with(None)
    weights = training.bidirectional(minutes=0.01)
    model = load_sprites(weights)
    assert (model.name, model.defaults.joint_latents) == ("sprites-bidirectional", JOINT_LATENTS)
    causal = load_sprites()
    assert causal.defaults.joint_latents is None
    assert torch.equal(model.vae.encoder.weight, causal.vae.encoder.weight.bfloat16().float())
    again = BidirectionalTraining(tmp_path, causal.vae, DenoiserSettings(chunks=4, pool=8))
    step = again.step
    assert step >= 1
    again.run(max_steps=1)
    assert again.step == step + 1


def test_no_caption_names_a_held_out_pair_though_every_pair_is_seen(vae):
    generator = np.random.default_rng(5)
    named, seen = set(), set()
    for _ in range(400):
        for scene, unsaid in zip(*draw_scenes(generator, 3, switch=0.5), strict=True):
            pair = scene.colour, scene.shape
            seen.add(pair)
            if unsaid is None:
                named.add(pair)
            words = set(re.findall("[a-z]+", caption(scene, generator, unsaid).lower()))
            if unsaid == "colour":
                assert not words & set(COLOUR_WORDS[scene.colour])
            if unsaid == "shape":
                assert not words & {word for names in SHAPE_WORDS.values() for word in names}
    assert not named & HELD_OUT_PAIRS
    assert len(seen) == 40 and len(named) == 40 - len(HELD_OUT_PAIRS)
