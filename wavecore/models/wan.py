"""A Wan 2.1 model folder, or hub repository, as a model that streams."""

from __future__ import annotations

import os
from pathlib import Path

from wavecore.errors import InputError
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.checkpoint import load_dit, load_vae
from wavecore.models.text import WanTextEncoder

WAN_DEFAULTS = StreamDefaults(size=(832, 480), fps=16, shift=5.0)


def load_wan(folder: str | os.PathLike[str]) -> StreamModel:
    """Load transformer, VAE and text encoder of a folder in Wan's or diffusers' layout.

    Raises
    ------
    CheckpointError, InputError
        A part is missing or does not fit; the message names the file.
    """
    return StreamModel(
        Path(folder).name, load_dit(folder), load_vae(folder), WanTextEncoder.load(folder), WAN_DEFAULTS
    )


def fetch(repository: str) -> Path:
    """Local folder of a hub repository such as "Wan-AI/Wan2.1-T2V-1.3B", downloaded if need be.

    Raises
    ------
    InputError
        huggingface_hub is not installed, or the repository cannot be reached.
    """
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise InputError(
            "model: expected the package huggingface_hub to download from the hub (pip install wavecore[wan])"
        ) from None
    try:
        return Path(snapshot_download(repository))
    except (OSError, ValueError) as error:  # its own errors derive from these
        raise InputError(
            f"model: cannot get {repository} from the hub: {' '.join(str(error).split())[:200]}"
        ) from None
