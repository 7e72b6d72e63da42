"""The folder of a Wan-class model, from its files to frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.text import TEXT_DIM, write_text_encoder

import wavecore as wc
from wavecore.errors import InputError, UsageError
from wavecore.models import TAEHV, CausalWanDiT, DiTConfig, WanVAE, WanVAEConfig, save_model
from wavecore.rounds import Sequential, StreamBatch


@pytest.fixture(
    scope="module",
    params=[
        (torch.float32, torch.float32),
        (torch.float32, torch.bfloat16),
        (torch.bfloat16, torch.bfloat16),
    ],
    ids=["float32", "published", "bfloat16"],
)
def folder(request, tmp_path_factory):
    """A tiny pipeline; as published, the text encoder is of lower precision than transformer and VAE."""
    dtype, text_dtype = request.param
    folder = write_text_encoder(tmp_path_factory.mktemp("wan"), text_dtype)
    torch.manual_seed(0)
    dit = CausalWanDiT(DiTConfig(dim=32, heads=2, layers=2, ffn_dim=64, text_dim=TEXT_DIM))
    save_model(dit.to(dtype), folder / "transformer")
    save_model(WanVAE(WanVAEConfig(base_dim=4, num_res_blocks=1)).to(dtype), folder / "vae")
    return folder


def frames_of(session):
    with session:
        return np.concatenate([group.frames for group in session])


def test_a_prompt_becomes_frames(folder):
    pipe = wc.load(folder)
    assert (pipe.size, pipe.fps) == ((832, 480), 16)
    first, second = (
        frames_of(pipe.session(prompt, num_frames=17, size=(64, 32))) for prompt in ("a red ball", "grass")
    )
    assert first.shape == (17, 32, 64, 3)
    assert first.std() > 0
    assert not np.array_equal(first, second)


def test_frames_are_restyled(folder):
    source = np.random.default_rng(0).integers(0, 256, (14, 32, 64, 3), dtype=np.uint8)
    assert frames_of(wc.load(folder).restyle(source, "a ball", size=(64, 32))).shape == source.shape


def test_a_part_that_is_missing_is_named(folder, tmp_path):
    (tmp_path / "transformer").symlink_to(folder / "transformer")
    with pytest.raises(InputError, match=f"{tmp_path}"):
        wc.load(tmp_path)


def test_a_distilled_checkpoint_and_a_tiny_decoder_take_the_place_of_the_folders_own(folder, tmp_path):
    torch.manual_seed(1)
    other = CausalWanDiT(DiTConfig(dim=128, heads=1, layers=2, ffn_dim=64, text_dim=TEXT_DIM))
    state = {f"model.{name}": value for name, value in other.state_dict().items()}
    torch.save({"generator_ema": state}, tmp_path / "model.pt")
    save_model(TAEHV(), tmp_path / "taew2_1.safetensors")
    pipe = wc.load(
        folder,
        checkpoint=tmp_path / "model.pt",
        vae=tmp_path / "taew2_1.safetensors",
        dtype=torch.float32,
    )
    assert isinstance(pipe.model.vae, TAEHV)
    assert torch.equal(pipe.model.dit.blocks[0].ffn[0].weight, other.blocks[0].ffn[0].weight)
    assert frames_of(pipe.session("a red ball", num_frames=9, size=(64, 32))).shape == (9, 32, 64, 3)


def test_a_recipe_decides_levels_rounds_and_context(folder):
    pipe = wc.load(folder, recipe="streamdiffusionv2")
    assert [level.timestep for level in pipe.levels(2)] == [700, 500, 0]
    assert pipe.levels(1, strength=0.3)[0].sigma == pytest.approx(0.700232, abs=1e-6)
    rules = pipe.rules(None, 2)
    assert isinstance(rules, StreamBatch)
    assert [read.key.chunk for read in rules.round(9).slots[0].reads] == [0, 1, 6, 7, 8]
    assert sum(read.frames for read in rules.round(9).slots[0].reads) == 6  # 3 sinks and the 3 newest
    with pytest.raises(UsageError, match="steps: expected at most 4 with this model, got 5"):
        pipe.session("a ball", steps=5, num_frames=5, size=(64, 32))
    pipe = wc.load(folder, recipe="self-forcing")
    rules = pipe.rules(None, 4)
    assert isinstance(rules, Sequential)
    steady = map(rules.round, range(60, 65))
    assert {sum(read.frames for read in round.slots[0].reads) for round in steady} == {21}
    assert wc.load(folder).rules(None, 4) == wc.load(folder, recipe="wave-forcing").rules("wavefront", 4)


def test_what_does_not_fit_a_model_is_refused(folder):
    with pytest.raises(UsageError, match="recipe: expected one of wave-forcing, self-forcing"):
        wc.load(folder, recipe="causvid")
    with pytest.raises(UsageError, match="vae: expected none with a sprites model"):
        wc.load("sprites", vae=folder)
