"""Text encoders: prompts to the features that cross-attention reads."""

from __future__ import annotations

import html
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from wavecore.errors import InputError, UsageError
from wavecore.models.checkpoint_checks import check_names, check_tensors, move
from wavecore.models.checkpoint_files import read_tensors

WAN_TEXT_LENGTH = 512
_TITLE = "a UMT5 encoder"
# Names of Wan's own file -> transformers, inside a layer and outside.
_LAYER = {
    "norm1": "layer.0.layer_norm",
    "attn.q": "layer.0.SelfAttention.q",
    "attn.k": "layer.0.SelfAttention.k",
    "attn.v": "layer.0.SelfAttention.v",
    "attn.o": "layer.0.SelfAttention.o",
    "pos_embedding.embedding": "layer.0.SelfAttention.relative_attention_bias",
    "norm2": "layer.1.layer_norm",
    "ffn.gate.0": "layer.1.DenseReluDense.wi_0",
    "ffn.fc1": "layer.1.DenseReluDense.wi_1",
    "ffn.fc2": "layer.1.DenseReluDense.wo",
}
_TOP = {"token_embedding": "shared", "norm": "encoder.final_layer_norm"}
_SHARED, _TIED = "shared.weight", "encoder.embed_tokens.weight"


class WanTextEncoder:
    """UMT5 as Wan 2.1 uses it: 512 positions, those after the prompt zero.

    Parameters
    ----------
    model : callable (token ids [b, l], mask [b, l]) -> object with `last_hidden_state` [b, l, d]
        A `transformers.UMT5EncoderModel`.
    tokenizer : callable
        Of transformers.
    length : int
        Positions.
    """

    def __init__(self, model: Any, tokenizer: Callable[..., Any], length: int = WAN_TEXT_LENGTH) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.length = length

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        tokenizer: str | os.PathLike[str] | None = None,
        dtype: torch.dtype | None = None,
        device: torch.device | str = "cpu",
    ) -> WanTextEncoder:
        """Load weights and tokenizer from local files.

        Parameters
        ----------
        path : path
            Folder of a Wan model, of diffusers (`text_encoder` and `tokenizer`) or Wan's own layout
            (`models_t5_*.pth` and `google/umt5-xxl`), or a weight file.
        tokenizer : path, optional
            Folder of the tokenizer; looked for beside the weights when not given.
        dtype : torch.dtype, optional
            Type of the weights; that of the file when not given.
        device : device
            Where the weights go.

        Raises
        ------
        CheckpointError
            Weights that do not fit, as for `wavecore.models.load_dit`.
        InputError
            No tokenizer, or transformers is not installed.
        """
        try:
            from transformers import AutoTokenizer, UMT5Config, UMT5EncoderModel
        except ImportError as error:
            raise InputError(
                "text encoder: expected the package transformers (pip install wavecore[wan]), got none"
            ) from error
        file = read_tensors(path, "text_encoder")
        names = _transformers_names(file.tensors)
        tensors = {new: file.tensors[name] for new, name in names.items()}
        sizes = _sizes(tensors)
        with torch.device("meta"):
            model = UMT5EncoderModel(UMT5Config(**sizes))
        expected = set(model.state_dict()) - {_TIED}
        shown = (
            {new: name for name, new in _wan_names(sizes["num_layers"]).items()}
            if _is_wan(file.tensors)
            else {}
        )
        missing = sorted(shown.get(name, name) for name in expected - names.keys())
        unexpected = sorted(names[name] for name in names.keys() - expected - {_TIED})
        check_names(len(expected), _TITLE, missing, unexpected, file.label)
        tensors[_TIED], names[_TIED] = tensors[_SHARED], names[_SHARED]
        found = check_tensors(tensors, names, model, file.label)
        moved = move({name: tensors[name] for name in expected}, dtype or found, device)
        model.load_state_dict({**moved, _TIED: moved[_SHARED]}, strict=True, assign=True)
        model.eval().requires_grad_(False)
        folder = _tokenizer_folder(Path(path)) if tokenizer is None else Path(tokenizer)
        try:
            return cls(model, AutoTokenizer.from_pretrained(folder, local_files_only=True))
        except (OSError, ValueError, ImportError, KeyError) as error:
            reason = " ".join(str(error).split())[:200]
            raise InputError(f"{folder}: expected a tokenizer, got {reason}") from error

    @torch.inference_mode()
    def __call__(self, prompts: list[str]) -> Tensor:
        """Features of prompts.

        Parameters
        ----------
        prompts : list of str
            At least one. Longer ones are cut to the length in tokens.

        Returns
        -------
        Tensor [b, length, d]
            On the device and of the type of the model; zero after the end of each prompt.
        """
        if isinstance(prompts, str) or not prompts:
            raise UsageError(f"prompts: expected a list of one or more strings, got {prompts!r}")
        tokens = self.tokenizer(
            [clean(prompt) for prompt in prompts],
            padding="max_length",
            max_length=self.length,
            truncation=True,
            add_special_tokens=True,
            return_attention_mask=True,
            return_tensors="pt",
        )
        ids, mask = (tokens[name].to(self.model.device) for name in ("input_ids", "attention_mask"))
        features = self.model(ids, attention_mask=mask).last_hidden_state
        # Not multiplied by the mask: a padding position may hold anything, infinity too.
        return features.masked_fill(mask[..., None] == 0, 0)


def clean(prompt: str) -> str:
    """Resolve HTML entities, also doubly escaped ones, and collapse white space, as Wan does."""
    return " ".join(html.unescape(html.unescape(prompt)).split())


def _is_wan(names: Iterable[str]) -> bool:
    return any(name.split(".")[0] in ("token_embedding", "blocks") for name in names)


def _wan_names(layers: int) -> dict[str, str]:
    """Wan's name -> transformers' name of every tensor."""
    names = {f"{ours}.weight": f"{theirs}.weight" for ours, theirs in _TOP.items()}
    for i in range(layers):
        names |= {f"blocks.{i}.{a}.weight": f"encoder.block.{i}.{b}.weight" for a, b in _LAYER.items()}
    return names


def _transformers_names(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """transformers' name -> name in the file; unknown names stay as they are."""
    if not _is_wan(tensors):
        return {name: name for name in tensors}
    known = _wan_names(len(tensors))
    return {known.get(name, name): name for name in tensors}


def _sizes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Arguments of UMT5Config that tensors tell; where one is missing the published size stands in."""

    def shape(name: str, default: tuple[int, int]) -> tuple[int, int]:
        found = tensors.get(name)
        return default if found is None or found.dim() != 2 else (found.shape[0], found.shape[1])

    first = "encoder.block.0.layer"
    layers = {
        name.split(".")[2] for name in tensors if name.startswith("encoder.block.") and name.count(".") > 4
    }
    buckets, heads = shape(f"{first}.0.SelfAttention.relative_attention_bias.weight", (32, 64))
    vocabulary, width = shape(_SHARED, (256384, 4096))
    inner, _ = shape(f"{first}.0.SelfAttention.q.weight", (4096, 4096))
    hidden, _ = shape(f"{first}.1.DenseReluDense.wi_0.weight", (10240, 4096))
    return {
        "vocab_size": vocabulary,
        "d_model": width,
        "d_kv": max(1, inner // max(1, heads)),
        "d_ff": hidden,
        "num_layers": max(1, len(layers)),
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
    }


def _tokenizer_folder(path: Path) -> Path:
    base = path if path.is_dir() else path.parent
    candidates = [base / "tokenizer", base / "google" / "umt5-xxl", base.parent / "tokenizer"]
    return next((folder for folder in candidates if folder.is_dir()), base)
