"""The sprites weights file is as strict as every other checkpoint."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from wavecore.errors import CheckpointError
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites import load_sprites, save_sprites
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    torch.manual_seed(0)
    dit = CausalWanDiT(DiTConfig(dim=32, heads=2, layers=1, ffn_dim=32, patch=(1, 4, 4), text_dim=16))
    path = tmp_path_factory.mktemp("weights") / "sprites.safetensors"
    save_sprites(path, dit, SpritesVAE(), SpritesTextEncoder(16), torch.bfloat16)
    return path


def changed(weights, tmp_path, change):
    with safe_open(weights, "pt") as file:
        metadata = file.metadata()
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(tensors, metadata)
    path = tmp_path / "changed.safetensors"
    save_file(tensors, path, metadata)
    return path


def test_a_saved_model_loads_as_it_was(weights):
    model = load_sprites(weights)
    with safe_open(weights, "pt") as file:
        saved = file.get_tensor("dit.head.head.weight")
    assert torch.equal(model.dit.head.head.weight, saved.float())
    assert model.dit.config.dim == 32


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t, m: t.pop("vae.encoder.bias"), "1 missing: vae.encoder.bias"),
        (lambda t, m: t.update(extra=torch.zeros(1)), "1 unexpected: extra"),
        (
            lambda t, m: t.update({"vae.encoder.bias": torch.zeros(3, dtype=torch.bfloat16)}),
            r"vae.encoder.bias: expected shape \[16\], got \[3\]",
        ),
        (lambda t, m: t["vae.encoder.bias"].fill_(float("nan")), "vae.encoder.bias: expected finite values"),
        (lambda t, m: m.update(config='{"dim": 32}'), "expected the sizes of a sprites model, got no patch"),
        (
            lambda t, m: m.update(config='{"patch": [2, 4, 4]}'),
            "expected the sizes of a sprites model: patch: expected a temporal size of 1",
        ),
        (lambda t, m: m.update(config="{"), "config"),
        (lambda t, m: m.clear(), "expected the sizes of a sprites model, got no patch"),
    ],
)
def test_what_does_not_fit_is_named(weights, tmp_path, change, message):
    path = changed(weights, tmp_path, change)
    with pytest.raises(CheckpointError, match=message) as error:
        load_sprites(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)


def test_garbage_and_missing_files_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(b"not safetensors")
    for broken in (path, tmp_path / "missing.safetensors"):
        with pytest.raises(CheckpointError, match=str(broken)):
            load_sprites(broken)


def test_the_default_dtype_and_device_of_the_process_are_not_those_of_the_weights():
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            model = load_sprites()
    finally:
        torch.set_default_dtype(before)
    for part in (model.dit, model.vae, model.encode_text):
        for name, tensor in part.state_dict().items():
            assert (tensor.dtype, tensor.device.type) == (torch.float32, "cpu"), name
