"""Sizes of a model from its tensors and, for what tensors cannot tell, from a configuration."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from torch import Tensor

from wavecore.errors import CheckpointError, UsageError
from wavecore.models.checkpoint_names import Kind, Scheme
from wavecore.models.dit import DiTConfig
from wavecore.models.taehv import TAEHVConfig
from wavecore.models.wan_vae import WanVAEConfig

ModelConfig = DiTConfig | WanVAEConfig | TAEHVConfig
_CONFIGS: dict[Kind, type[ModelConfig]] = {"dit": DiTConfig, "vae": WanVAEConfig, "taehv": TAEHVConfig}
# `_class_name` in the configurations of Wan, diffusers and wavecore.
_CLASSES: dict[Kind, tuple[str, ...]] = {
    "dit": ("WanModel", "CausalWanModel", "WanTransformer3DModel", "CausalWanDiT"),
    "vae": ("AutoencoderKLWan", "WanVAE"),
    "taehv": ("TAEHV",),
}
# Names of Wan and diffusers for what wavecore calls otherwise.
_ALIASES = {
    "num_heads": "heads",
    "num_attention_heads": "heads",
    "num_layers": "layers",
    "in_dim": "in_channels",
    "out_dim": "out_channels",
    "freq_dim": "frequency_dim",
    "patch_size": "patch",
    "temperal_downsample": "temporal_downsample",
}
_HEAD_DIM = 128  # of every published Wan transformer


def dit_layers(names: Iterable[str]) -> int:
    """Number of transformer layers under original names, not counting an index of a few stray tensors."""
    tensors = Counter(
        parts[1] for parts in (name.split(".") for name in names) if parts[0] == "blocks" and parts[1:]
    )
    most = max(tensors.values(), default=0)
    return sum(2 * count > most for count in tensors.values())


def infer_config(
    kind: Kind, tensors: Mapping[str, Tensor], given: Mapping[str, Any], label: str, given_label: str
) -> ModelConfig:
    """Configuration of a model from tensors under original names.

    Parameters
    ----------
    kind : {"dit", "vae", "taehv"}
        Model.
    tensors : mapping of str to Tensor
        Original names; the set is complete, shapes may be wrong.
    given : mapping
        Contents of a configuration file of Wan, diffusers or wavecore; empty without one. A file of
        another model is ignored.
    label, given_label : str
        Names of the checkpoint and of the configuration, for messages.

    Raises
    ------
    CheckpointError
        The two contradict each other, or something is known from neither.
    """
    if given.get("_class_name", _CLASSES[kind][0]) not in _CLASSES[kind]:
        given = {}
    stated = _stated(kind, given, given_label)
    if kind == "dit":
        found = _dit_sizes(tensors, label)
        if "heads" not in stated:
            if found["dim"] % _HEAD_DIM:
                raise CheckpointError(
                    f"{label}: heads: expected a configuration that gives it, or a width that is a multiple "
                    f"of {_HEAD_DIM}, got a width of {found['dim']}"
                )
            found["heads"] = found["dim"] // _HEAD_DIM
    elif kind == "vae":
        found = vae_sizes(tensors, label)
        if found["z_dim"] != WanVAEConfig.z_dim and not {"latents_mean", "latents_std"} <= stated.keys():
            raise CheckpointError(
                f"{label}: latents_mean, latents_std: expected a configuration that gives them, because "
                f"latents of Wan 2.1 have {WanVAEConfig.z_dim} channels, got {found['z_dim']}"
            )
    else:
        found = _taehv_sizes(tensors)
    for key, value in found.items():
        if stated.setdefault(key, value) != value:
            raise CheckpointError(f"{given_label}: {key}: expected {value} as in {label}, got {stated[key]}")
    try:
        return _CONFIGS[kind](**stated)
    except UsageError as error:
        raise CheckpointError(f"{given_label or label}: {error}") from error


def to_config_file(config: ModelConfig, scheme: Scheme) -> dict[str, Any]:
    """Contents of a configuration file: diffusers' own keys, or wavecore's with Wan's for its readers."""
    own = asdict(config)
    if isinstance(config, TAEHVConfig):
        return {"_class_name": "TAEHV", **own}
    if isinstance(config, WanVAEConfig):
        if scheme == "original":
            return {"_class_name": "WanVAE", **own}
        own["temperal_downsample"] = own.pop("temporal_downsample")
        return {"_class_name": "AutoencoderKLWan", "attn_scales": [], "dropout": 0.0, **own}
    if scheme == "original":
        renamed = {
            "num_heads": "heads",
            "num_layers": "layers",
            "in_dim": "in_channels",
            "out_dim": "out_channels",
        }
        theirs = {name: own.pop(ours) for name, ours in renamed.items()}
        theirs |= {"freq_dim": own.pop("frequency_dim"), "patch_size": own.pop("patch")}
        return {"_class_name": "WanModel", "model_type": "t2v", "text_len": 512, **own, **theirs}
    return {
        "_class_name": "WanTransformer3DModel",
        "patch_size": config.patch,
        "num_attention_heads": config.heads,
        "attention_head_dim": config.head_dim,
        "in_channels": config.in_channels,
        "out_channels": config.out_channels,
        "text_dim": config.text_dim,
        "freq_dim": config.frequency_dim,
        "ffn_dim": config.ffn_dim,
        "num_layers": config.layers,
        "cross_attn_norm": True,
        "qk_norm": "rms_norm_across_heads",
        "eps": config.eps,
        "rope_max_seq_len": 1024,
        "prediction": config.prediction,
    }


def _stated(kind: Kind, given: Mapping[str, Any], label: str) -> dict[str, Any]:
    """Fields of the configuration class that a file states; keys of other things are ignored."""
    stated = {_ALIASES.get(key, key): value for key, value in given.items()}
    if kind == "dit" and "dim" not in stated and "attention_head_dim" in stated:
        stated["dim"] = _positive("attention_head_dim", stated["attention_head_dim"], label) * _positive(
            "heads", stated.get("heads"), label
        )
    result = {}
    for field in fields(_CONFIGS[kind]):
        if field.name not in stated:
            continue
        value = stated[field.name]
        if isinstance(field.default, tuple) and isinstance(value, (list, tuple)):
            value = tuple(value)
        elif isinstance(field.default, int):
            value = _positive(field.name, value, label)
        elif not isinstance(value, type(field.default)):
            kind_of_value = type(field.default).__name__
            raise CheckpointError(f"{label}: {field.name}: expected a {kind_of_value}, got {value!r}")
        result[field.name] = value
    return result


def _positive(name: str, value: object, label: str) -> int:
    if not isinstance(value, int) or value < 1:
        raise CheckpointError(f"{label}: {name}: expected a positive integer, got {value!r}")
    return value


def _most(values: Iterable[int], default: int = 0) -> int:
    """The most frequent value: one misshapen tensor does not decide the size of all others."""
    counted = Counter(values).most_common(1)
    return counted[0][0] if counted else default


def _size(tensor: Tensor, axis: int) -> int:
    return tensor.shape[axis] if tensor.dim() > axis else 0


def _dit_sizes(tensors: Mapping[str, Tensor], label: str) -> dict[str, Any]:
    layers = dit_layers(tensors)
    patches = tensors["patch_embedding.weight"]
    patch = tuple(patches.shape[2:])
    if len(patch) != 3 or patch[0] != 1:
        raise CheckpointError(
            f"{label}: patch_embedding.weight: expected shape [dim, channels, 1, height, width], "
            f"got {list(patches.shape)}"
        )
    channels = _size(tensors["head.head.bias"], 0) // (patch[1] * patch[2])
    if _size(patches, 1) != channels:
        raise CheckpointError(
            f"{label}: patch_embedding.weight: expected {channels} input channels, as many as head.head "
            f"gives, got shape {list(patches.shape)}"
        )
    attention = [f"blocks.{i}.self_attn.{part}.bias" for i in range(layers) for part in "qkvo"]
    hidden = [f"blocks.{i}.ffn.0.bias" for i in range(layers)]
    widened = [f"blocks.{i}.ffn.0.weight" for i in range(layers)]
    narrowed = [f"blocks.{i}.ffn.2.weight" for i in range(layers)]
    return {
        "dim": _most(_size(tensors[name], 0) for name in attention),
        "layers": layers,
        "ffn_dim": _most(
            [_size(tensors[name], 0) for name in hidden + widened]
            + [_size(tensors[name], 1) for name in narrowed]
        ),
        "in_channels": channels,
        "out_channels": channels,
        "patch": patch,
        "text_dim": _size(tensors["text_embedding.0.weight"], 1),
        "frequency_dim": _size(tensors["time_embedding.0.weight"], 1),
    }


def vae_sizes(tensors: Mapping[str, Tensor], label: str) -> dict[str, Any]:
    """Sizes of a Wan VAE from whichever of its tensors are there, under original names.

    Which tensors there have to be follows from them, so they cannot all be asked for.
    """

    def sizes(*names: str, axis: int = 0) -> list[int]:
        return [_size(tensors[name], axis) for name in names if name in tensors]

    units: dict[int, set[str]] = {}
    for parts in (name.split(".") for name in tensors):
        if parts[:2] == ["encoder", "downsamples"] and len(parts) > 3 and parts[2].isdecimal():
            units.setdefault(int(parts[2]), set()).add(parts[3])
    steps = sorted(index for index, inner in units.items() if "resample" in inner)
    blocks = steps[0] if steps else len(units)
    base = _most(
        sizes("encoder.conv1.weight", "encoder.conv1.bias", "encoder.downsamples.0.residual.0.gamma"),
        WanVAEConfig.base_dim,
    )
    multipliers = []
    for level in range(len(steps) + 1):
        first = level * (blocks + 1)
        inner = (
            "residual.2.weight",
            "residual.2.bias",
            "residual.3.gamma",
            "residual.6.weight",
            "residual.6.bias",
        )
        of_level = [f"encoder.downsamples.{first + i}.{name}" for i in range(blocks) for name in inner]
        width = _most(sizes(*of_level), base)
        if base < 1 or width < base or width % base:
            raise CheckpointError(
                f"{label}: encoder.downsamples.{first}: expected a multiple of {base} channels, as many as "
                f"encoder.conv1 gives, got {width}"
            )
        multipliers.append(width // base)
    z = _most(
        sizes("conv2.weight", "conv2.bias") + sizes("conv2.weight", "decoder.conv1.weight", axis=1),
        WanVAEConfig.z_dim,
    )
    return {
        "base_dim": base,
        "z_dim": z,
        "dim_mult": tuple(multipliers),
        "num_res_blocks": blocks,
        "temporal_downsample": tuple("time_conv" in units[index] for index in steps),
    }


def _taehv_sizes(tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    return {
        "latent_channels": _size(tensors["encoder.17.weight"], 0),
        "encoder_width": _size(tensors["encoder.0.weight"], 0),
        "decoder_widths": tuple(_size(tensors[f"decoder.{i}.weight"], 0) for i in (1, 8, 14, 20)),
    }
