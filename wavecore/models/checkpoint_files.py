"""Reading and writing files of tensors: safetensors, single or sharded, and PyTorch files without code."""

from __future__ import annotations

import json
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from wavecore.errors import CheckpointError, InputError
from wavecore.files import complete_or_nothing
from wavecore.models.checkpoint_names import few

Subfolder = Literal["transformer", "vae", "text_encoder"]
WEIGHTS_STEM = "diffusion_pytorch_model"
CONFIG_FILE = "config.json"
_PICKLES = (".pt", ".pth", ".bin")
# Where Self-Forcing and StreamDiffusionV2 files keep the generator; averaged weights first.
_WRAPPING_KEYS = ("generator_ema", "generator", "state_dict")
# Files that stand beside the transformer in a folder of Wan: VAE, text encoder, image encoder, TAEHV.
_OTHER_MODEL = re.compile("vae|t5|clip|taew|taehv")
_SHARD = re.compile(r"(?P<stem>.+)-\d{5}-of-(?P<count>\d{5})\.safetensors")


@dataclass
class TensorFile:
    """Tensors as stored, what describes them, and a name for messages."""

    tensors: Mapping[str, Tensor]
    label: str
    config: dict[str, Any] = field(default_factory=dict)
    config_label: str = CONFIG_FILE


def read_tensors(path: str | os.PathLike[str], subfolder: Subfolder = "transformer") -> TensorFile:
    """Read a weight file, an index of shards, or the weights in a folder.

    Parameters
    ----------
    path : path
        File or folder.
    subfolder : "transformer", "vae" or "text_encoder"
        Which model to take from a folder that holds several: that subfolder, as diffusers lays out a
        pipeline, or the files so named, as Wan does.

    Raises
    ------
    CheckpointError
        Unreadable or incomplete files; a pickle with anything but tensors, of which nothing is run.
    """
    path = Path(path)
    if not path.exists():
        raise CheckpointError(f"{path}: expected a weight file or folder, got nothing there")
    if path.is_dir():
        if (path / subfolder).is_dir():
            path = path / subfolder
        path = _weights_in(path, subfolder)
    metadata: dict[str, str] = {}
    tensors: Mapping[str, Tensor]
    if path.name.endswith(".index.json"):
        tensors = _read_shards(path, _read_index(path))
    elif match := _SHARD.fullmatch(path.name):
        tensors = _read_unindexed(path, match["stem"], int(match["count"]))
    elif path.suffix == ".safetensors":
        tensors, metadata = _read_safetensors(path)
    elif path.suffix in _PICKLES:
        tensors = unwrap(_read_pickle(path), str(path))
    else:
        raise CheckpointError(f"{path}: expected .safetensors, .index.json, .pt or .pth, got {path.suffix!r}")
    if "config" in metadata:
        return TensorFile(
            tensors, str(path), _parse_json(metadata["config"], f"{path}: config"), f"{path}: config"
        )
    beside = path.parent / CONFIG_FILE
    config = _read_json(beside) if beside.is_file() else {}
    return TensorFile(tensors, str(path), config, str(beside))


def unwrap(loaded: object, label: str) -> Mapping[str, Tensor]:
    """The generator's tensors of a loaded file or a state dict in memory."""
    while isinstance(loaded, Mapping) and any(isinstance(loaded.get(key), Mapping) for key in _WRAPPING_KEYS):
        loaded = next(loaded[key] for key in _WRAPPING_KEYS if isinstance(loaded.get(key), Mapping))
    if not isinstance(loaded, Mapping) or not loaded:
        raise CheckpointError(f"{label}: expected named tensors, got {_describe(loaded)}")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, Tensor):
            raise CheckpointError(f"{label}: {name}: expected a tensor, got {_describe(value)}")
    return loaded


def write_tensors(
    tensors: Mapping[str, Tensor],
    path: str | os.PathLike[str],
    config: Mapping[str, Any],
    max_shard_bytes: int = 5_000_000_000,
) -> list[Path]:
    """Write safetensors and their configuration; either everything is there afterwards or nothing is.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        What to write.
    path : path
        A name ending in .safetensors is one file with the configuration in its metadata. Anything else is
        a folder with `diffusion_pytorch_model.safetensors` (or shards and an index) and `config.json`.
    config : mapping
        Sizes of the model.
    max_shard_bytes : int
        A folder with more than this is split into several files.

    Returns
    -------
    list of Path
        The files.

    Raises
    ------
    InputError
        The place cannot be written.
    """
    path = Path(path)
    text = json.dumps(dict(config), indent=2) + "\n"
    if path.suffix == ".safetensors":
        return _commit(path.parent, {path.name: (dict(tensors), {"format": "pt", "config": text})})
    shards = _split(tensors, max_shard_bytes)
    names = (
        [f"{WEIGHTS_STEM}.safetensors"]
        if len(shards) == 1
        else [f"{WEIGHTS_STEM}-{i:05}-of-{len(shards):05}.safetensors" for i in range(1, len(shards) + 1)]
    )
    files: dict[str, Any] = {
        name: (shard, {"format": "pt"}) for name, shard in zip(names, shards, strict=True)
    }
    if len(shards) > 1:
        index = {
            "metadata": {"total_size": sum(t.nbytes for t in tensors.values())},
            "weight_map": {key: name for name, shard in zip(names, shards, strict=True) for key in shard},
        }
        files[f"{WEIGHTS_STEM}.safetensors.index.json"] = json.dumps(index, indent=2) + "\n"
    return _commit(path, {**files, CONFIG_FILE: text})


def _commit(folder: Path, files: Mapping[str, Any]) -> list[Path]:
    """Write every file, then give all their names; an error leaves none of them."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if CONFIG_FILE in files:
            others = {f.name for f in folder.iterdir() if f.name.endswith((".safetensors", ".index.json"))}
            if others := others - files.keys():
                raise InputError(
                    f"{folder}: expected a folder without other weights, got {few(sorted(others))}"
                )
        with ExitStack() as stack:
            for name, content in files.items():
                pending = stack.enter_context(complete_or_nothing(folder / name))
                if isinstance(content, str):
                    pending.write_text(content, encoding="utf-8")
                else:
                    tensors, metadata = content
                    save_file({k: t.contiguous() for k, t in tensors.items()}, pending, metadata=metadata)
    except (OSError, SafetensorError) as error:
        raise InputError(f"{folder}: cannot write: {_one_line(error)}") from error
    return [folder / name for name in files]


def _split(tensors: Mapping[str, Tensor], max_bytes: int) -> list[dict[str, Tensor]]:
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for name, tensor in tensors.items():
        if shards[-1] and size + tensor.nbytes > max_bytes:
            shards.append({})
            size = 0
        shards[-1][name] = tensor
        size += tensor.nbytes
    return shards


def _weights_in(folder: Path, subfolder: Subfolder) -> Path:
    everything = sorted(file for file in folder.iterdir() if file.is_file())
    if subfolder == "transformer":
        files = [file for file in everything if not _OTHER_MODEL.search(file.name.lower())]
    else:
        mark = "vae" if subfolder == "vae" else "t5"
        files = [file for file in everything if mark in file.name.lower()] or everything
    for wanted in (
        [file for file in files if file.name.endswith(".safetensors.index.json")],
        _one_per_set([file for file in files if file.suffix == ".safetensors"]),
        [file for file in files if file.suffix in _PICKLES],
    ):
        if len(wanted) == 1:
            return wanted[0]
        if wanted:
            raise CheckpointError(f"{folder}: expected one set of weights, got {few(f.name for f in wanted)}")
    raise CheckpointError(f"{folder}: expected weights (.safetensors, .pt or .pth), got none")


def _one_per_set(files: list[Path]) -> list[Path]:
    """One file for each set of shards that has no index."""
    sets: dict[object, Path] = {}
    for file in files:
        match = _SHARD.fullmatch(file.name)
        sets.setdefault((match["stem"], match["count"]) if match else file.name, file)
    return list(sets.values())


def _read_index(path: Path) -> dict[str, str]:
    index = _read_json(path)
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(
            f"{path}: weight_map: expected file names by tensor, got {_describe(weight_map)}"
        )
    for name, file in weight_map.items():
        if not isinstance(file, str) or not file or Path(file).name != file:
            raise CheckpointError(f"{path}: {name}: expected a file in the same folder, got {file!r}")
    return weight_map


def _read_shards(index: Path, weight_map: dict[str, str]) -> dict[str, Tensor]:
    shards = list(dict.fromkeys(weight_map.values()))
    missing = [file for file in shards if not (index.parent / file).is_file()]
    if missing:
        raise CheckpointError(f"{index}: {len(missing)} of {len(shards)} files missing: {few(missing)}")
    tensors: dict[str, Tensor] = {}
    for file in shards:
        content, _ = _read_safetensors(index.parent / file)
        listed = {name for name, where in weight_map.items() if where == file}
        if lost := sorted(listed - content.keys()):
            raise CheckpointError(f"{index.parent / file}: {len(lost)} missing of its index: {few(lost)}")
        if extra := sorted(content.keys() - listed):
            raise CheckpointError(f"{index.parent / file}: {len(extra)} not in its index: {few(extra)}")
        tensors.update(content)
    return tensors


def _read_unindexed(path: Path, stem: str, count: int) -> dict[str, Tensor]:
    files = [path.parent / f"{stem}-{i:05}-of-{count:05}.safetensors" for i in range(1, count + 1)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise CheckpointError(f"{path.parent}: {len(missing)} of {count} files missing: {few(missing)}")
    tensors: dict[str, Tensor] = {}
    for file in files:
        content, _ = _read_safetensors(file)
        if twice := sorted(tensors.keys() & content.keys()):
            raise CheckpointError(f"{file}: {len(twice)} already in an earlier file: {few(twice)}")
        tensors.update(content)
    return tensors


def _read_safetensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as error:
        raise CheckpointError(f"{path}: expected a safetensors file, got {_one_line(error)}") from error


def _read_pickle(path: Path) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about pickles that are refused anyway
            # Mapped rather than read where the format allows: no second copy in memory.
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path))
    except pickle.UnpicklingError as error:
        refused = re.search(r"GLOBAL (\S+)", str(error))
        got = f"a pickle that asks for {refused[1]}" if refused else "something else"
        raise CheckpointError(f"{path}: expected tensors only, got {got}; nothing of it was run") from error
    except (OSError, RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise CheckpointError(f"{path}: expected a PyTorch file, got {_one_line(error)}") from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return _parse_json(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{path}: expected JSON, got {_one_line(error)}") from error


def _parse_json(text: str, label: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise CheckpointError(f"{label}: expected JSON, got {_one_line(error)}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{label}: expected a JSON object, got {_describe(value)}")
    return value


def _describe(value: object) -> str:
    return "an empty mapping" if isinstance(value, Mapping) and not value else type(value).__name__


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
