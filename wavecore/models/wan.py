"""A Wan 2.1 model folder, or hub repository, as a model that streams."""

from __future__ import annotations

import os
from pathlib import Path

from wavecore.errors import InputError, UsageError
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.checkpoint import load_dit, load_vae
from wavecore.models.text import WanTextEncoder

# How the public few-step, chunk-causal checkpoints were distilled, and so how they have to stream.
RECIPES = {
    "wave-forcing": StreamDefaults(size=(832, 480), fps=16, shift=5.0),
    "self-forcing": StreamDefaults(
        size=(832, 480),
        fps=16,
        shift=5.0,
        anchor_chunks=0,
        sequential_history=6,  # with itself, the 21 latents of its window
        store_history=6,
        rounds="sequential",
    ),
    "streamdiffusionv2": StreamDefaults(
        size=(832, 480),
        fps=16,
        shift=8.0,
        chunk_frames=1,
        first_chunk_frames=2,
        anchor_chunks=2,  # with the 2 latents of the first chunk, its 3 sinks
        stream_history=2,
        strength=0.8,
        rounds="stream_batch",
        timesteps=(700.0, 500.0, 400.0, 200.0),
    ),
}


def load_wan(
    folder: str | os.PathLike[str],
    recipe: str = "wave-forcing",
    checkpoint: str | os.PathLike[str] | None = None,
    vae: str | os.PathLike[str] | None = None,
) -> StreamModel:
    """Load transformer, VAE and text encoder of a folder in Wan's or diffusers' layout.

    Parameters
    ----------
    folder : path
        Model folder.
    recipe : str
        One of `RECIPES`: how the transformer was distilled.
    checkpoint : path, optional
        Distilled transformer in place of the folder's own.
    vae : path, optional
        Wan VAE or TAEHV in place of the folder's own.

    Raises
    ------
    UsageError
        No such recipe.
    CheckpointError, InputError
        A part is missing or does not fit; the message names the file.
    """
    if recipe not in RECIPES:
        raise UsageError(f"recipe: expected one of {', '.join(RECIPES)}, got {recipe!r}")
    return StreamModel(
        Path(folder).name,
        load_dit(folder if checkpoint is None else checkpoint),
        load_vae(folder if vae is None else vae),
        WanTextEncoder.load(folder),
        RECIPES[recipe],
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
