"""UMT5 through transformers: features, padding, both layouts of files, faults."""

from __future__ import annotations

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from support.text import write_text_encoder

from wavecore.errors import CheckpointError, InputError, UsageError
from wavecore.models.text import WanTextEncoder, _wan_names, clean


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny pipeline folder as transformers writes it."""
    return write_text_encoder(tmp_path_factory.mktemp("pipeline"))


@pytest.fixture(scope="module")
def state(folder):
    return load_file(folder / "text_encoder" / "model.safetensors")


def test_features_equal_transformers(folder):
    encode = WanTextEncoder.load(folder)
    features = encode(["a red ball", "grass"])
    assert features.shape == (2, 512, 16)
    theirs = transformers.UMT5EncoderModel.from_pretrained(folder / "text_encoder").eval()
    for row, ids in ((0, [3, 4, 5, 1]), (1, [9, 1])):
        expected = theirs(torch.tensor([ids])).last_hidden_state[0]
        torch.testing.assert_close(features[row, : len(ids)], expected, rtol=1e-5, atol=1e-6)
        assert features[row, len(ids) :].count_nonzero() == 0
        assert expected.abs().mean() > 0.1


def test_file_of_wan(folder, state, tmp_path):
    names = _wan_names(2)
    assert len(names) == 2 * 10 + 2
    torch.save({ours: state[theirs] for ours, theirs in names.items()}, tmp_path / "models_t5_tiny.pth")
    (tmp_path / "google").mkdir()
    (tmp_path / "google" / "umt5-xxl").symlink_to(folder / "tokenizer")
    prompts = ["a red ball rolling left"]
    assert torch.equal(WanTextEncoder.load(tmp_path)(prompts), WanTextEncoder.load(folder)(prompts))
    file = tmp_path / "models_t5_tiny.pth"
    assert torch.equal(WanTextEncoder.load(file)(prompts), WanTextEncoder.load(folder)(prompts))


@pytest.mark.parametrize(
    "prompt",
    ["", "a" * 100_000, "a " * 50_000, "🎈🏀", "红色的球", "كرة حمراء", "a\0red ball", "\n\t"],
    ids=["empty", "long word", "long", "emoji", "CJK", "right to left", "NUL", "white space"],
)
def test_any_prompt_gives_finite_features(folder, prompt):
    features = WanTextEncoder.load(folder)([prompt])
    assert features.shape == (1, 512, 16)
    assert features.isfinite().all()
    assert features[0, 0].count_nonzero() > 0  # the end of the text at least


def test_dtype(folder):
    assert WanTextEncoder.load(folder, dtype=torch.bfloat16)(["a"]).dtype == torch.bfloat16


def test_clean():
    assert clean("  a &amp;amp; b\n\n c&lt;d ") == "a & b c<d"


@pytest.mark.parametrize("prompts", [[], "a red ball"])
def test_wrong_prompts_are_named(folder, prompts):
    with pytest.raises(UsageError, match="prompts: expected a list"):
        WanTextEncoder.load(folder)(prompts)


@pytest.mark.parametrize("scheme", ["transformers", "wan"])
def test_faults_are_named(state, tmp_path, scheme):
    names = _wan_names(2) if scheme == "wan" else {name: name for name in _wan_names(2).values()}
    good = {shown: state[theirs] for shown, theirs in names.items()}

    def fault(tensors, *parts):
        save_file(tensors, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError) as raised:
            WanTextEncoder.load(tmp_path / "model.safetensors")
        line = str(raised.value)
        assert "\n" not in line
        assert all(part in line for part in parts), line

    for key, tensor in good.items():
        fault({k: t for k, t in good.items() if k != key}, f"1 missing: {key}")
        if names[key] != "shared.weight":  # any number of words is one
            fault({**good, key: torch.cat([tensor, tensor[:1]])}, "expected shape")
    fault({**good, "other": torch.zeros(1)}, "1 unexpected: other")
    key = next(iter(good))
    fault({**good, key: torch.full_like(good[key], float("nan"))}, key, "NaN")
    fault({**good, key: good[key].to(torch.int8)}, key, "expected float32, got int8")


def test_missing_tokenizer(state, tmp_path):
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(InputError, match="expected a tokenizer"):
        WanTextEncoder.load(tmp_path)
