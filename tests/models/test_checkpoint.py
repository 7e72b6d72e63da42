"""Loading, saving and converting: every naming scheme and container of a checkpoint works."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.checkpoints import DIT, TINY, VAE, dit_tensors, fault, same, vae_tensors, write_shards

from wavecore.errors import CheckpointError, InputError
from wavecore.models import checkpoint_files
from wavecore.models.checkpoint import convert_checkpoint, load_dit, load_vae, save_model
from wavecore.models.checkpoint_names import convert_state_dict, strip_wrappers
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.taehv import TAEHV
from wavecore.models.wan_vae import WanVAE, WanVAEConfig

KEY = "blocks.1.self_attn.norm_q.weight"


@pytest.fixture(scope="module")
def dit_state():
    return dit_tensors()


@pytest.fixture(scope="module")
def vae_state():
    return vae_tensors()


# -- names and containers --------------------------------------------------------------------


@pytest.mark.parametrize("prefix", ["", "model.", "model._fsdp_wrapped_module.", "_fsdp_wrapped_module."])
def test_prefixes(dit_state, prefix):
    assert same(load_dit({prefix + key: tensor for key, tensor in dit_state.items()}), dit_state)


def test_wrappers_inside_a_name(dit_state):
    wrapped = {
        key.replace("blocks.1.", "blocks.1._fsdp_wrapped_module."): tensor
        for key, tensor in dit_state.items()
    }
    assert wrapped.keys() != dit_state.keys()
    assert same(load_dit(wrapped), dit_state)


def test_only_whole_components_are_stripped():
    assert strip_wrappers("model.model_a._fsdp_wrapped_module.b") == "model_a.b"
    assert strip_wrappers("my_model.x_fsdp_wrapped_module.b") == "my_model.x_fsdp_wrapped_module.b"


@pytest.mark.parametrize("key", ["generator_ema", "generator", "state_dict"])
def test_top_keys(tmp_path, dit_state, key):
    path = tmp_path / "model.pt"
    torch.save({key: {f"model.{k}": t for k, t in dit_state.items()}, "step": 3}, path)
    assert same(load_dit(path), dit_state)


def test_averaged_weights_come_first(dit_state):
    other = {k: t + 1 for k, t in dit_state.items()}
    assert same(load_dit({"generator": other, "critic": other, "generator_ema": dit_state}), dit_state)


def test_old_pytorch_files(tmp_path, dit_state):
    path = tmp_path / "model.pth"
    torch.save(dit_state, path, _use_new_zipfile_serialization=False)
    assert same(load_dit(str(path)), dit_state)


def test_diffusers_names(dit_state, vae_state):
    assert same(load_dit(convert_state_dict(dit_state, "diffusers")), dit_state)
    assert same(load_vae(convert_state_dict(vae_state, "diffusers")), vae_state)


@pytest.mark.parametrize("as_index", [True, False])
def test_shards(tmp_path, dit_state, as_index):
    index = write_shards(tmp_path, dit_state, 3)
    assert same(load_dit(index if as_index else tmp_path), dit_state)
    index.unlink()  # complete shards are enough
    assert same(load_dit(tmp_path), dit_state)


def test_folder_of_a_pipeline(tmp_path, dit_state, vae_state):
    for name, state in (("transformer", dit_state), ("vae", vae_state)):
        (tmp_path / name).mkdir()
        save_file(
            convert_state_dict(state, "diffusers"),
            tmp_path / name / "diffusion_pytorch_model.safetensors",
        )
    assert same(load_dit(tmp_path), dit_state)
    assert same(load_vae(tmp_path), vae_state)


def test_folder_of_wan(tmp_path, dit_state, vae_state):
    """Transformer, its configuration, VAE and text encoder side by side."""
    config = {"_class_name": "WanModel", "dim": 128, "num_heads": 2, "num_layers": 2, "eps": 1e-5}
    (tmp_path / "config.json").write_text(json.dumps(config))
    torch.save(dit_state, tmp_path / "model.pt")
    torch.save(vae_state, tmp_path / "Wan2.1_VAE.pth")
    torch.save({"x": torch.zeros(1)}, tmp_path / "models_t5_umt5-xxl-enc-bf16.pth")
    dit = load_dit(tmp_path)
    assert (dit.config.heads, dit.config.eps) == (2, 1e-5)
    assert same(load_vae(tmp_path), vae_state)


def test_heads_from_configuration_or_width(tmp_path, dit_state):
    assert load_dit(dit_state).config == DIT
    assert load_dit(dit_state, config={"num_attention_heads": 4, "attention_head_dim": 32}).config.heads == 4
    narrow = CausalWanDiT(DiTConfig(dim=24, heads=2, layers=1, ffn_dim=8, text_dim=4))
    fault(load_dit, narrow.state_dict(), "heads", "multiple of 128", "24")
    assert load_dit(narrow.state_dict(), config={"heads": 2}).config.heads == 2


def test_loading_shares_memory_and_needs_no_second_copy(dit_state):
    dit = load_dit(dit_state)
    assert all(p.data_ptr() == dit_state[name].data_ptr() for name, p in dit.named_parameters())
    assert not dit.training
    assert not any(p.requires_grad for p in dit.parameters())


def test_dtype_and_device(dit_state, vae_state):
    half = {k: t.bfloat16() for k, t in dit_state.items()}
    assert load_dit(half).patch_embedding.weight.dtype == torch.bfloat16
    assert load_dit(half, dtype=torch.float32).patch_embedding.weight.dtype == torch.float32
    half["blocks.0.norm3.weight"] = dit_state["blocks.0.norm3.weight"]  # as diffusers keeps it
    assert {p.dtype for p in load_dit(half).parameters()} == {torch.bfloat16}
    vae = load_vae(vae_state, dtype=torch.bfloat16)
    assert {t.dtype for t in (*vae.parameters(), *vae.buffers())} == {torch.bfloat16}
    assert load_dit(dit_state, device="meta").patch_embedding.weight.is_meta
    fault(load_dit, {k: t.to("meta") for k, t in dit_state.items()}, "on meta")


@torch.inference_mode()
def test_loaded_vae_decodes_as_the_saved_one(vae_state):
    vae = WanVAE(VAE)
    vae.load_state_dict(vae_state)
    latents = torch.randn(1, 16, 2, 2, 2)
    torch.testing.assert_close(load_vae(vae_state).decode(latents), vae.decode(latents), rtol=1e-4, atol=1e-5)


def test_taehv():
    model = TAEHV(TINY)
    loaded = load_vae({"state_dict": model.state_dict()})
    assert isinstance(loaded, TAEHV)
    assert loaded.config == TINY
    assert same(loaded, model.state_dict())


def test_vae_with_other_latents_needs_their_statistics(tmp_path):
    config = WanVAEConfig(
        base_dim=4,
        z_dim=2,
        dim_mult=(1, 3),
        temporal_downsample=(True,),
        latents_mean=(0.5, 1.0),
        latents_std=(2.0, 3.0),
    )
    vae = WanVAE(config)
    fault(load_vae, vae.state_dict(), "latents_mean", "got 2")
    save_model(vae, tmp_path / "vae.safetensors")
    assert load_vae(tmp_path / "vae.safetensors").config == config


@pytest.mark.parametrize("name", ["model.safetensors", "folder"])
@pytest.mark.parametrize(
    "make",
    [
        lambda: CausalWanDiT(DiTConfig(dim=16, heads=2, layers=1, ffn_dim=8, text_dim=4, prediction="x0")),
        lambda: WanVAE(VAE),
        lambda: TAEHV(TINY),
    ],
)
def test_save_model_keeps_everything(tmp_path, name, make):
    model = make()
    save_model(model, tmp_path / name)
    load = load_dit if isinstance(model, CausalWanDiT) else load_vae
    loaded = load(tmp_path / name)
    assert loaded.config == model.config
    assert same(loaded, model.state_dict())


# -- conversion ------------------------------------------------------------------------------


@pytest.mark.parametrize("first, second", [("original", "diffusers"), ("diffusers", "original")])
def test_conversion_there_and_back(tmp_path, dit_state, vae_state, first, second):
    for load, state in ((load_dit, dit_state), (load_vae, vae_state)):
        folder = tmp_path / str(len(state))
        convert_checkpoint(state, folder / "one", first)
        convert_checkpoint(folder / "one", folder / "two.safetensors", second)
        assert load_file(folder / "two.safetensors").keys() == convert_state_dict(state, second).keys()
        assert same(load(folder / "one"), state)
        assert same(load(folder / "two.safetensors"), state)
        assert load(folder / "two.safetensors").config == load(folder / "one").config


def test_conversion_in_shards(tmp_path, dit_state):
    files = convert_checkpoint(dit_state, tmp_path, "diffusers", max_shard_bytes=200_000)
    shards = [f for f in files if f.suffix == ".safetensors"]
    assert len(shards) > 2
    assert sorted(tmp_path.iterdir()) == sorted(files)
    total = json.loads((tmp_path / "diffusion_pytorch_model.safetensors.index.json").read_text())["metadata"]
    assert total["total_size"] == sum(t.nbytes for t in dit_state.values())
    assert same(load_dit(tmp_path), dit_state)


def test_diffusers_reads_the_result(tmp_path, dit_state, vae_state):
    import diffusers

    convert_checkpoint(dit_state, tmp_path / "dit", "diffusers")
    convert_checkpoint(vae_state, tmp_path / "vae", "diffusers")

    def read(kind, folder):
        model = kind.from_config(kind.load_config(folder))
        model.load_state_dict(load_file(folder / "diffusion_pytorch_model.safetensors"))
        return model

    theirs = read(diffusers.WanTransformer3DModel, tmp_path / "dit")
    ours = load_dit(dit_state)
    latents, text = torch.randn(1, 4, 2, 4, 4), torch.randn(1, 5, 10)
    expected = theirs(latents, torch.tensor([500.0]), text).sample
    torch.testing.assert_close(ours(latents, torch.full((1, 2), 500.0), text), expected, rtol=0, atol=1e-5)
    vae = read(diffusers.AutoencoderKLWan, tmp_path / "vae")
    assert same(load_vae(vae.state_dict()), vae_state)


def test_diffusers_saves_what_is_read(tmp_path):
    import diffusers

    theirs = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, num_layers=1, ffn_dim=8, text_dim=4
    )
    theirs.save_pretrained(tmp_path / "transformer", max_shard_size="40KB")
    dit = load_dit(tmp_path)
    assert dit.config == DiTConfig(dim=24, heads=2, layers=1, ffn_dim=8, text_dim=4)
    assert same(dit, convert_state_dict(theirs.state_dict(), "original"))


def test_nothing_is_written_for_a_faulty_checkpoint(tmp_path, dit_state):
    with pytest.raises(CheckpointError, match="missing"):
        convert_checkpoint({k: t for k, t in dit_state.items() if k != KEY}, tmp_path / "out", "diffusers")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_nothing_is_left_of_a_write_that_fails(tmp_path, monkeypatch, dit_state, error):
    def write_some_and_fail(tensors, path, metadata):
        path.write_bytes(b"half")
        raise error

    monkeypatch.setattr(checkpoint_files, "save_file", write_some_and_fail)
    with pytest.raises(InputError if isinstance(error, OSError) else KeyboardInterrupt) as raised:
        convert_checkpoint(dit_state, tmp_path / "out.safetensors", "original")
    assert list(tmp_path.iterdir()) == []
    if isinstance(error, OSError):
        assert str(raised.value).endswith("cannot write: the disk is full")


def test_output_that_cannot_be_written(tmp_path, dit_state):
    (tmp_path / "file").write_text("x")
    for output in (tmp_path / "file", tmp_path / "file" / "x.safetensors"):
        with pytest.raises(InputError, match="cannot write"):
            convert_checkpoint(dit_state, output, "original")


def test_output_folder_with_other_weights(tmp_path, dit_state):
    convert_checkpoint(dit_state, tmp_path, "original", max_shard_bytes=200_000)
    with pytest.raises(InputError, match="without other weights"):
        convert_checkpoint(dit_state, tmp_path, "original")
    convert_checkpoint(dit_state, tmp_path, "original", max_shard_bytes=200_000)
    assert same(load_dit(tmp_path), dit_state)


def test_loading_does_not_import_the_compiler_of_torch():
    """Some operations on meta tensors import it, which takes seconds of every start."""
    code = (
        "import sys; from wavecore.models import *;"
        "config = DiTConfig(dim=16, heads=2, layers=1, ffn_dim=8, text_dim=4);"
        "load_dit(CausalWanDiT(config).state_dict(), config={'heads': 2});"
        "load_vae(WanVAE(WanVAEConfig(base_dim=4, num_res_blocks=1)).state_dict());"
        "assert not {'sympy', 'torch._dynamo', 'diffusers', 'transformers'} & sys.modules.keys()"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
