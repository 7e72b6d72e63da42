"""The folder of a Wan-class model, from its files to frames."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.text import TEXT_DIM, write_text_encoder

import wavecore as wc
from wavecore.errors import InputError
from wavecore.models import CausalWanDiT, DiTConfig, WanVAE, WanVAEConfig, save_model


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
