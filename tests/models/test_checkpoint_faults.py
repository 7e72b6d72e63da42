"""Strict loading: every fault of a checkpoint is one line that names it."""

from __future__ import annotations

import json
import os
import pickle

import pytest
import torch
from safetensors.torch import save_file
from support.checkpoints import dit_tensors, fault, vae_tensors, write_shards

from wavecore.errors import CheckpointError
from wavecore.models.checkpoint import load_dit, load_vae
from wavecore.models.checkpoint_names import convert_state_dict

KEY = "blocks.1.self_attn.norm_q.weight"


@pytest.fixture(scope="module")
def dit_state():
    return dit_tensors()


@pytest.fixture(scope="module")
def vae_state():
    return vae_tensors()


# -- faults of tensors -----------------------------------------------------------------------


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
