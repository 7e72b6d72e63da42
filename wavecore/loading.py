"""From a name, a file or a folder to a pipeline."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Literal

import torch

from wavecore.errors import UsageError
from wavecore.models.bundle import StreamModel
from wavecore.models.int8 import quantize_dit
from wavecore.models.sprites import SPRITES_MODELS, load_sprites, package_file
from wavecore.ops.checks import FLOATING
from wavecore.pipeline import Pipeline


def load(
    model: str | os.PathLike[str] = "sprites",
    *,
    recipe: str | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    vae: str | os.PathLike[str] | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    quantization: Literal["int8"] | None = None,
    key_cache: Literal["int8"] | None = None,
) -> Pipeline:
    """Load a model.

    Parameters
    ----------
    model : str or path
        "sprites" (in the package), a sprites weights file, or the folder or hub name of a Wan-class
        model that was distilled to few steps and made causal. A plain Wan 2.1 loads too, but was
        never trained to stream, and four steps of it show little.
    recipe : "wave-forcing", "self-forcing" or "streamdiffusionv2", optional
        How a Wan-class model was distilled, which decides noise levels, chunk length, context and the
        usual rounds; "wave-forcing" when not given.
    checkpoint : path, optional
        Distilled transformer in place of the one in a Wan-class folder, such as the `model.pt` of
        StreamDiffusionV2.
    vae : path, optional
        Wan VAE or TAEHV in place of the one in a Wan-class folder.
    device : torch.device or str
        Where it runs.
    dtype : torch.dtype, optional
        Type of its weights, float32, bfloat16 or float16; that of the files when not given (sprites:
        float32).
    quantization : "int8", optional
        Linear layers of the transformer in int8, weights and activations, by
        `wavecore.models.int8.quantize_dit`, which can tell the error of each layer.
    key_cache : "int8", optional
        Hold the keys of the context in int8, quantised once when they are written, and attend to them with
        int8 queries (`wavecore.ops.paged_attention_int8`). In a two-byte dtype they take half of the memory,
        and of what replicas send each other.

    Raises
    ------
    UsageError
        No such model, recipe, device, dtype, quantization or key cache.
    CheckpointError, InputError
        Its files cannot be used; the message names the file.
    """
    if dtype is not None and dtype not in FLOATING:
        raise UsageError(f"dtype: expected torch.float32, torch.bfloat16 or torch.float16, got {dtype!r}")
    if quantization not in (None, "int8"):
        raise UsageError(f'quantization: expected "int8" or None, got {quantization!r}')
    if key_cache not in (None, "int8"):
        raise UsageError(f'key_cache: expected "int8" or None, got {key_cache!r}')
    try:
        where = torch.device(device)
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA asserts
        reason = str(error).splitlines()[0]
        raise UsageError(f"device: expected one that works here, got {device}: {reason}") from None
    loaded = _read(model, recipe, checkpoint, vae).to(where, dtype)
    if quantization is not None:
        quantize_dit(loaded.dit)
    loaded.dit.int8_keys = key_cache is not None
    return Pipeline(loaded)


def _read(
    model: str | os.PathLike[str],
    recipe: str | None,
    checkpoint: str | os.PathLike[str] | None,
    vae: str | os.PathLike[str] | None,
) -> StreamModel:
    if not isinstance(model, str | os.PathLike):
        raise UsageError(f'model: expected "sprites", a path or a hub name, got {model!r}')
    path = Path(model)
    packaged = SPRITES_MODELS.get(str(model))
    if packaged is not None or path.is_file():
        for name, value in (("recipe", recipe), ("checkpoint", checkpoint), ("vae", vae)):
            if value is not None:
                raise UsageError(f"{name}: expected none with a sprites model, got {str(value)!r}")
        return load_sprites(path if packaged is None else package_file(packaged))
    # Not what begins in an existing folder or ends as a weights file: a path in which something is mistyped.
    is_hub_name = (
        re.fullmatch(r"\w[\w.-]*/[\w.-]+", str(model)) is not None
        and not path.parent.is_dir()
        and path.suffix not in (".safetensors", ".pt", ".pth")
    )
    if not path.is_dir() and not is_hub_name:
        expected = '"sprites", a path, or a hub name of the form organisation/repository'
        close = difflib.get_close_matches(str(model), SPRITES_MODELS, n=1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"model: expected {expected}, got {str(model)!r}{hint}")
    from wavecore.models.wan import fetch, load_wan

    folder = path if path.is_dir() else fetch(str(model))
    return load_wan(folder, "wave-forcing" if recipe is None else recipe, checkpoint, vae)
