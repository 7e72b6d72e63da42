"""Strict loading: every naming scheme and container works, every fault is one line that names it."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

from wavecore.errors import CheckpointError, InputError
from wavecore.models import checkpoint_files
from wavecore.models.checkpoint import convert_checkpoint, load_dit, load_vae, save_model
from wavecore.models.checkpoint_names import convert_state_dict, strip_wrappers
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.taehv import TAEHV, TAEHVConfig
from wavecore.models.wan_vae import WanVAE, WanVAEConfig

DIT = DiTConfig(
    dim=128, heads=1, layers=2, ffn_dim=24, text_dim=10, frequency_dim=8, in_channels=4, out_channels=4
)
VAE = WanVAEConfig(base_dim=4, num_res_blocks=1)
TINY = TAEHVConfig(latent_channels=5, encoder_width=8, decoder_widths=(16, 12, 8, 6))


@pytest.fixture(scope="module")
def dit_state():
    torch.manual_seed(0)
    return dict(CausalWanDiT(DIT).state_dict())


@pytest.fixture(scope="module")
def vae_state():
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


# -- faults of tensors -----------------------------------------------------------------------

KEY = "blocks.1.self_attn.norm_q.weight"


@pytest.mark.parametrize("scheme", ["original", "diffusers"])
def test_missing_tensor(dit_state, scheme):
    state = convert_state_dict(dit_state, scheme)
    key = KEY if scheme == "original" else "blocks.1.attn1.norm_q.weight"
    del state[key]
    fault(load_dit, state, "expected the 69 tensors of a Wan DiT", f"1 missing: {key}")


@pytest.mark.parametrize("scheme", ["original", "diffusers"])
def test_whichever_tensor_is_missing_is_named(dit_state, vae_state, scheme):
    for load, original in ((load_dit, dit_state), (load_vae, vae_state)):
        state = convert_state_dict(original, scheme)
        for key in list(state)[::7]:
            fault(load, {k: t for k, t in state.items() if k != key}, f"missing: {key}")


def test_extra_tensor(dit_state, vae_state):
    fault(load_dit, {**dit_state, "blocks.0.extra": torch.zeros(1)}, "1 unexpected: blocks.0.extra")
    fault(load_dit, {**dit_state, "blocks.7.modulation": torch.zeros(1)}, "1 unexpected: blocks.7.modulation")
    fault(load_dit, {**dit_state, "blocks.99999999999.modulation": torch.zeros(1)}, "unexpected")
    fault(
        load_vae,
        {**vae_state, "decoder.upsamples.90.x": torch.zeros(1)},
        "1 unexpected: decoder.upsamples.90.x",
    )


def test_renamed_tensor(dit_state):
    state = dict(dit_state)
    state["blocks.1.self_attn.norm_qq.weight"] = state.pop(KEY)
    fault(load_dit, state, f"1 missing: {KEY}", "1 unexpected: blocks.1.self_attn.norm_qq.weight")


def test_names_of_two_schemes_in_one_file(dit_state):
    state = dict(dit_state)
    state["blocks.1.attn1.norm_q.weight"] = state.pop(KEY)
    fault(load_dit, state, f"missing: {KEY}", "unexpected: blocks.1.attn1.norm_q.weight")


def test_one_tensor_under_two_names(dit_state):
    fault(load_dit, {**dit_state, f"model.{KEY}": dit_state[KEY]}, KEY, "expected once")


def test_many_missing_tensors_are_counted(dit_state):
    fault(load_dit, {k: t for k, t in dit_state.items() if "norm" not in k}, "12 missing", "and 9 more")


def test_whichever_tensor_is_misshapen_is_named(dit_state, vae_state):
    # Sizes that nothing else in the model repeats: there the shape itself is the only witness.
    free = {"text_embedding.0.weight", "time_embedding.0.weight"}
    for load, state in ((load_dit, dit_state), (load_vae, vae_state)):
        for key, tensor in list(state.items())[::6]:
            if key not in free:
                wrong = torch.cat([tensor, tensor[:1]])
                fault(load, {**state, key: wrong}, key, "expected", str(list(wrong.shape)))


def test_flattened_patch_embedding(dit_state):
    key = "patch_embedding.weight"
    fault(load_dit, {**dit_state, key: dit_state[key].squeeze(2)}, key, "expected shape")


def test_other_input_channels(dit_state):
    key = "patch_embedding.weight"
    fault(load_dit, {**dit_state, key: torch.zeros(128, 36, 1, 2, 2)}, key, "expected 4 input channels")


@pytest.mark.parametrize(
    "value, named", [(float("nan"), "NaN"), (float("inf"), "infinity"), (-float("inf"), "infinity")]
)
def test_values_that_are_not_finite(dit_state, value, named):
    tensor = dit_state[KEY].clone()
    tensor[3] = value
    fault(load_dit, {**dit_state, KEY: tensor}, f"{KEY}: expected finite values, got {named}")


@pytest.mark.parametrize("dtype", [torch.int8, torch.float16, torch.float64, torch.complex64, torch.bool])
def test_wrong_dtype(dit_state, dtype):
    name = str(dtype).removeprefix("torch.")
    fault(load_dit, {**dit_state, KEY: dit_state[KEY].to(dtype)}, f"{KEY}: expected float32, got {name}")


def test_all_integers(dit_state):
    fault(
        load_dit, {k: t.to(torch.int8) for k, t in dit_state.items()}, "69 tensors", "got int8", "and 66 more"
    )


def test_other_models(dit_state, vae_state):
    fault(load_dit, vae_state, "expected a Wan DiT, got a Wan VAE")
    fault(load_vae, dit_state, "expected a Wan VAE or TAEHV, got a Wan DiT")
    fault(load_dit, {"layer.weight": torch.zeros(1)}, "layer.weight")
    fault(load_dit, {}, "an empty mapping")
    fault(load_dit, {"patch_embedding.weight": 3}, "patch_embedding.weight: expected a tensor, got int")


@pytest.mark.parametrize(
    "names",
    [
        ["blocks", "blocks.", "blocks.x.y", "model", "", "_fsdp_wrapped_module"],
        ["encoder.downsamples", "decoder.upsamples.²", "decoder.upsamples.1", "encoder.x.y"],
        ["decoder.up_blocks.0.resnets", "decoder.up_blocks.0.resnets.x", "encoder.mid_block"],
    ],
)
def test_odd_names(names):
    state = {name: torch.zeros(1) for name in names}
    for load in (load_dit, load_vae):
        fault(load, state)
    with pytest.raises(CheckpointError):
        convert_state_dict(state, "original" if "decoder.up_blocks.0.resnets" in names else "diffusers")


# -- faults of configurations ----------------------------------------------------------------


@pytest.mark.parametrize(
    "config, named",
    [
        ({"num_layers": 3}, ["layers", "expected 2", "got 3"]),
        ({"num_heads": 3}, ["dim: expected an even multiple of heads"]),
        ({"num_heads": 0}, ["heads: expected a positive integer, got 0"]),
        ({"num_heads": "1"}, ["heads: expected a positive integer, got '1'"]),
        ({"attention_head_dim": 128}, ["heads: expected a positive integer, got None"]),
        ({"eps": "small"}, ["eps: expected a float"]),
        ({"prediction": "noise"}, ["prediction", "noise"]),
        ({"patch_size": [1, 4, 4]}, ["patch", "(1, 2, 2)", "(1, 4, 4)"]),
    ],
)
def test_configuration_that_does_not_fit(tmp_path, dit_state, config, named):
    save_file(dit_state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    fault(load_dit, tmp_path, "config.json", *named)


@pytest.mark.parametrize("text", ["", "{", "[]", "\ud800".encode("utf-8", "surrogatepass")])
def test_broken_configuration(tmp_path, dit_state, text):
    save_file(dit_state, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    fault(load_dit, tmp_path, "config.json", "expected")


# -- faults of files -------------------------------------------------------------------------


def test_missing_shard(tmp_path, dit_state):
    index = write_shards(tmp_path, dit_state)
    name = "diffusion_pytorch_model-00002-of-00002.safetensors"
    (tmp_path / name).unlink()
    fault(load_dit, tmp_path, "1 of 2 files missing", name)
    index.unlink()
    fault(load_dit, tmp_path, "1 of 2 files missing", name)


def test_index_and_shards_that_disagree(tmp_path, dit_state):
    index = write_shards(tmp_path, dit_state)
    content = json.loads(index.read_text())
    file = content["weight_map"][KEY]
    del content["weight_map"][KEY]
    index.write_text(json.dumps(content))
    fault(load_dit, index, file, f"1 not in its index: {KEY}")
    content["weight_map"] |= {KEY: file, "ghost": file}
    index.write_text(json.dumps(content))
    fault(load_dit, index, file, "1 missing of its index: ghost")


@pytest.mark.parametrize("elsewhere", ["../model.safetensors", "/etc/passwd", "", 3])
def test_index_that_leaves_its_folder(tmp_path, elsewhere):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": elsewhere}}))
    fault(load_dit, index, "a: expected a file in the same folder")


@pytest.mark.parametrize("content", [{}, {"weight_map": {}}, {"weight_map": []}])
def test_index_without_files(tmp_path, content):
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps(content))
    fault(load_dit, index, "weight_map")


def test_places_without_weights(tmp_path):
    fault(load_dit, tmp_path / "nothing.safetensors", "nothing.safetensors", "nothing there")
    fault(load_dit, tmp_path, "expected weights", "got none")
    (tmp_path / "model.onnx").write_bytes(b"x")
    fault(load_dit, tmp_path / "model.onnx", ".onnx")


def test_folder_with_two_models(tmp_path, dit_state):
    save_file(dit_state, tmp_path / "a.safetensors")
    save_file(dit_state, tmp_path / "b.safetensors")
    fault(load_dit, tmp_path, "a.safetensors, b.safetensors")


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
@pytest.mark.parametrize("keep", [0, 3, 0.5])
def test_truncated_files(tmp_path, dit_state, suffix, keep):
    path = tmp_path / f"model{suffix}"
    save_file(dit_state, path) if suffix == ".safetensors" else torch.save(dit_state, path)
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * keep) if keep < 1 else keep])
    fault(load_dit, path, str(path), "expected")


class SideEffect:
    """Unpickling this writes a file."""

    def __init__(self, path) -> None:
        self.path = str(path)

    def __reduce__(self):
        return os.mkdir, (self.path,)


@pytest.mark.parametrize("how", ["torch", "old torch", "plain pickle"])
def test_pickle_with_a_side_effect_is_not_run(tmp_path, dit_state, how):
    path, mark = tmp_path / "model.pt", tmp_path / "ran"
    content = {**dit_state, "payload": SideEffect(mark)}
    if how == "plain pickle":
        path.write_bytes(pickle.dumps({"payload": SideEffect(mark)}))
    else:
        torch.save(content, path, _use_new_zipfile_serialization=how == "torch")
    line = fault(load_dit, path, str(path), "expected tensors only")
    assert not mark.exists()
    assert "mkdir" in line or how == "plain pickle"


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
    diffusers = pytest.importorskip("diffusers")
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
    diffusers = pytest.importorskip("diffusers")
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
        assert "No space left" in str(raised.value)


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
