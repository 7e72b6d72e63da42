"""The sprites model as one file: transformer, VAE and text encoder together."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from importlib import resources
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import nn

from wavecore.errors import CheckpointError, UsageError
from wavecore.files import complete_or_nothing
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.checkpoint_checks import check_names, check_tensors
from wavecore.models.checkpoint_files import read_tensors
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE

SPRITES_FILE = "sprites.safetensors"
BIDIRECTIONAL_FILE = "sprites-bidirectional.safetensors"
SPRITES_MODELS = {"sprites": SPRITES_FILE, "sprites-bidirectional": BIDIRECTIONAL_FILE}
SPRITES_DEFAULTS = StreamDefaults(
    size=(128, 128),
    fps=16,
    shift=5.0,
    anchor_chunks=0,
    history=1,
    store_history=2,
    noise_span=0.1,  # with more noise a subject leaves the path of a fast source, with less its shape suffers
    noise_scale=0.5,
)


def save_sprites(
    path: Path,
    dit: CausalWanDiT,
    vae: SpritesVAE,
    text_encoder: SpritesTextEncoder,
    dtype: torch.dtype,
    joint_latents: int | None = None,
) -> None:
    """Write the three parts of a sprites model as one safetensors file.

    Parameters
    ----------
    path : Path
    dit : CausalWanDiT
    vae : SpritesVAE
    text_encoder : SpritesTextEncoder
    dtype : torch.dtype
        Of the tensors in the file.
    joint_latents : int, optional
        Latents that the model samples jointly, for the bidirectional variant.

    Raises
    ------
    InputError
        The file cannot be written; there is then none.
    """
    parts = nn.ModuleDict({"dit": dit, "vae": vae, "text": text_encoder})
    tensors = {name: value.detach().to(dtype).contiguous() for name, value in parts.state_dict().items()}
    config = asdict(dit.config) | ({} if joint_latents is None else {"joint_latents": joint_latents})
    content = save(tensors, metadata={"config": json.dumps(config)})
    with complete_or_nothing(path) as pending:
        pending.write_bytes(content)


def load_sprites(path: Path | None = None) -> StreamModel:
    """Load a sprites model, causal or bidirectional; the causal one in the package when no path is given.

    Raises
    ------
    CheckpointError
        The file is missing, damaged or of another model; the message names the tensor.
    """
    file = read_tensors(package_file(SPRITES_FILE) if path is None else path)
    joint = file.config.get("joint_latents")
    dit = CausalWanDiT(_config({k: v for k, v in file.config.items() if k != "joint_latents"}, file.label))
    vae, text_encoder = SpritesVAE(), SpritesTextEncoder(dit.config.text_dim)
    parts = nn.ModuleDict({"dit": dit, "vae": vae, "text": text_encoder})
    expected = parts.state_dict().keys()
    check_names(
        len(expected),
        "a sprites model",
        sorted(expected - file.tensors.keys()),
        sorted(file.tensors.keys() - expected),
        file.label,
    )
    check_tensors(file.tensors, {name: name for name in expected}, parts, file.label)
    parts.load_state_dict({name: tensor.float() for name, tensor in file.tensors.items()}, assign=True)
    parts.eval().requires_grad_(False)
    name = "sprites" if joint is None else "sprites-bidirectional"
    return StreamModel(name, dit, vae, text_encoder, replace(SPRITES_DEFAULTS, joint_latents=joint))


def package_file(file: str) -> Path:
    """Path of a weights file in the package."""
    return Path(str(resources.files("wavecore") / "weights" / file))


def _config(stated: dict[str, Any], label: str) -> DiTConfig:
    if "patch" not in stated:
        raise CheckpointError(f"{label}: expected the sizes of a sprites model, got no patch size")
    try:
        return DiTConfig(**{**stated, "patch": tuple(stated["patch"])})
    except (TypeError, UsageError) as error:
        raise CheckpointError(f"{label}: expected the sizes of a sprites model: {error}") from None
