"""Strict loading and conversion of Wan-class checkpoints.

Every tensor of the file has its place in the model and every place its tensor, of the right shape, of a
floating-point type and finite; anything else is a `CheckpointError` of one line that names the tensor.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from wavecore.errors import CheckpointError, UsageError
from wavecore.models.checkpoint_checks import check_names, check_tensors, move
from wavecore.models.checkpoint_config import (
    ModelConfig,
    dit_layers,
    infer_config,
    to_config_file,
    vae_sizes,
)
from wavecore.models.checkpoint_files import Subfolder, TensorFile, read_tensors, unwrap, write_tensors
from wavecore.models.checkpoint_names import (
    Kind,
    Scheme,
    convert_state_dict,
    few,
    kind_of,
    renamer,
    scheme_of,
    strip_wrappers,
)
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.taehv import TAEHV, TAEHVConfig
from wavecore.models.wan_vae import WanVAE, WanVAEConfig
from wavecore.models.wan_vae_layers import arrange_weights

Source = str | os.PathLike[str] | Mapping[str, Any]

_TITLES: dict[Kind, str] = {"dit": "a Wan DiT", "vae": "a Wan VAE", "taehv": "TAEHV"}


@dataclass
class _Checked:
    """A checkpoint that fits; tensors under original names."""

    tensors: dict[str, Tensor]
    config: ModelConfig
    dtype: torch.dtype


def load_dit(
    source: Source,
    *,
    config: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> CausalWanDiT:
    """Load a causal Wan DiT.

    Parameters
    ----------
    source : path or state dict
        A safetensors file, an index of shards, a ``.pt`` file of tensors, a folder with one of them (a
        pipeline's ``transformer`` folder is found), or a mapping of names to tensors. Names may be
        original, under ``model.`` and FSDP prefixes, or of diffusers; top keys ``generator_ema``,
        ``generator`` and ``state_dict`` are opened.
    config : mapping, optional
        In place of the file's own configuration, with keys of Wan, diffusers or `DiTConfig`. Sizes follow
        from the tensors; the number of heads comes from a configuration, or heads are 128 wide.
    dtype : torch.dtype, optional
        Type of the weights; that of the file when not given.
    device : device
        Where the weights go.

    Returns
    -------
    CausalWanDiT
        In evaluation mode, weights without gradients.

    Raises
    ------
    CheckpointError
        A file or tensor that does not fit, in one line that names it, what was expected and what was got.
    """
    file = _open(source, config, "transformer")
    return cast(CausalWanDiT, _load(_check(file, ("dit",)), dtype, device))


def load_vae(
    source: Source,
    *,
    config: Mapping[str, Any] | None = None,
    dtype: torch.dtype | None = None,
    device: torch.device | str = "cpu",
) -> WanVAE | TAEHV:
    """Load a Wan VAE, or a TAEHV when the tensors are those of one.

    Parameters are as for `load_dit`; in a folder of several models, the ``vae`` folder or the file with
    "vae" in its name is taken. Latents with other than 16 channels need `latents_mean` and `latents_std`
    in the configuration.
    """
    checked = _check(_open(source, config, "vae"), ("vae", "taehv"))
    return cast("WanVAE | TAEHV", _load(checked, dtype, device))


def save_model(model: nn.Module, path: str | os.PathLike[str]) -> list[Path]:
    """Write a `CausalWanDiT`, `WanVAE` or `TAEHV` with its configuration, under original names.

    A path ending in .safetensors is one file, any other a folder; see `checkpoint_files.write_tensors`.

    Raises
    ------
    UsageError
        The model is quantised: `load_dit` takes what it was before, and `quantize_dit` quantises it anew.
    """
    tensors = model.state_dict()
    quantised = [name for name, tensor in tensors.items() if not tensor.is_floating_point()]
    if quantised:
        raise UsageError(
            f"model: expected floating-point weights, got {tensors[quantised[0]].dtype} in {few(quantised)}"
        )
    config = to_config_file(cast(ModelConfig, model.config), "original")
    return write_tensors(tensors, path, config)


def convert_checkpoint(
    source: Source,
    output: str | os.PathLike[str],
    to: Scheme,
    *,
    config: Mapping[str, Any] | None = None,
    max_shard_bytes: int = 5_000_000_000,
) -> list[Path]:
    """Read any Wan DiT, Wan VAE or TAEHV checkpoint and write it as safetensors under one scheme.

    Parameters
    ----------
    source : path or state dict
        As for `load_dit`; in a folder of several models, the transformer.
    output : path
        A name ending in .safetensors, or a folder.
    to : "original" or "diffusers"
        Names of the result.
    config : mapping, optional
        As for `load_dit`.
    max_shard_bytes : int
        A folder with more than this is split into several files with an index.

    Returns
    -------
    list of Path
        Files written.

    Raises
    ------
    CheckpointError
        As for `load_dit`; nothing is written then.
    InputError
        The output cannot be written; nothing is left there then.
    """
    checked = _check(_open(source, config, "transformer"), ("dit", "vae", "taehv"))
    renamed = convert_state_dict(checked.tensors, to)
    return write_tensors(renamed, output, to_config_file(checked.config, to), max_shard_bytes)


def _open(source: Source, config: Mapping[str, Any] | None, subfolder: Subfolder) -> TensorFile:
    if isinstance(source, (str, os.PathLike)):
        file = read_tensors(source, subfolder)
    else:
        file = TensorFile(unwrap(source, "state dict"), "state dict")
    if config is not None:
        file.config, file.config_label = dict(config), "config"
    return file


def _check(file: TensorFile, kinds: tuple[Kind, ...]) -> _Checked:
    """Names, then shapes, then types, then values."""
    kind, names = _match_names(file, kinds)
    tensors = {original: file.tensors[name] for original, name in names.items()}
    config = infer_config(kind, tensors, file.config, file.label, file.config_label)
    return _Checked(tensors, config, check_tensors(tensors, names, _build(config), file.label))


def _match_names(file: TensorFile, kinds: tuple[Kind, ...]) -> tuple[Kind, dict[str, str]]:
    """The model that a file is of, and original name -> name in the file for all its tensors."""
    stripped = {name: strip_wrappers(name) for name in file.tensors}
    kind = kind_of(stripped.values())
    if kind is None or kind not in kinds:
        wanted = " or ".join(_TITLES[k] for k in kinds)
        got = _TITLES[kind] if kind else f"tensors such as {few(file.tensors)}"
        raise CheckpointError(f"{file.label}: expected {wanted}, got {got}")
    scheme = scheme_of(stripped.values(), kind)
    to_original = renamer(stripped.values(), kind, scheme, "original")
    names: dict[str, str] = {}
    unexpected = []
    for name, short in stripped.items():
        original = to_original(short)
        if original is None:
            unexpected.append(name)
        elif original in names:
            raise CheckpointError(f"{file.label}: {name}: expected once, got it as {names[original]} too")
        else:
            names[original] = name
    tensors = {original: file.tensors[name] for original, name in names.items()}
    expected = dict.fromkeys(_expected_names(kind, tensors, file.label))
    unexpected += [name for original, name in names.items() if original not in expected]
    from_original = renamer(expected, kind, "original", scheme)
    missing = [from_original(name) or name for name in expected if name not in names]
    check_names(len(expected), _TITLES[kind], missing, unexpected, file.label)
    return kind, {original: names[original] for original in expected}


def _build(config: ModelConfig) -> CausalWanDiT | WanVAE | TAEHV:
    with torch.device("meta"):
        if isinstance(config, DiTConfig):
            return CausalWanDiT(config)
        return TAEHV(config) if isinstance(config, TAEHVConfig) else WanVAE(config)


def _expected_names(kind: Kind, found: Mapping[str, Tensor], label: str) -> list[str]:
    """All names of a model with as many parts as the checkpoint seems to have, whatever their widths."""
    config: ModelConfig
    if kind == "dit":
        layers = max(1, dit_layers(found))
        config = DiTConfig(dim=2, heads=1, layers=layers, ffn_dim=1, text_dim=1, frequency_dim=2)
    elif kind == "vae":
        sizes = vae_sizes(found, label)
        ones = (1.0,) * sizes["z_dim"]
        config = WanVAEConfig(**sizes, latents_mean=ones, latents_std=ones)
    else:
        config = TAEHVConfig()
    return list(_build(config).state_dict())


def _load(
    checked: _Checked, dtype: torch.dtype | None, device: torch.device | str
) -> CausalWanDiT | WanVAE | TAEHV:
    """Build on meta and put the tensors themselves in place: there is no second copy of the weights."""
    model = _build(checked.config)
    tensors = move(checked.tensors, dtype or checked.dtype, device)
    model.load_state_dict(tensors, strict=True, assign=True)
    model.to(device, dtype or checked.dtype)  # buffers, which no checkpoint has
    if not isinstance(model, CausalWanDiT):
        arrange_weights(model)
    return model.eval().requires_grad_(False)
