"""Naming schemes of Wan checkpoints, matched on whole dotted components.

* original: the published Wan 2.1 files, also what wavecore's modules use;
* wrapped: the same below ``model.`` and ``_fsdp_wrapped_module`` (Self-Forcing, StreamDiffusionV2);
* diffusers: `WanTransformer3DModel` and `AutoencoderKLWan`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Literal

from torch import Tensor

from wavecore.errors import CheckpointError, UsageError

Scheme = Literal["original", "diffusers"]
Kind = Literal["dit", "vae", "taehv"]

# Original module or parameter -> diffusers, outside the blocks of the transformer.
_DIT_TOP = {
    "patch_embedding": "patch_embedding",
    "text_embedding.0": "condition_embedder.text_embedder.linear_1",
    "text_embedding.2": "condition_embedder.text_embedder.linear_2",
    "time_embedding.0": "condition_embedder.time_embedder.linear_1",
    "time_embedding.2": "condition_embedder.time_embedder.linear_2",
    "time_projection.1": "condition_embedder.time_proj",
    "head.head": "proj_out",
    "head.modulation": "scale_shift_table",
}
_ATTENTION = {"q": "to_q", "k": "to_k", "v": "to_v", "o": "to_out.0", "norm_q": "norm_q", "norm_k": "norm_k"}
# The same inside "blocks.<i>". The affine norm of the cross-attention is the third in one scheme and the
# second in the other; the remaining norms have no parameters.
_DIT_BLOCK = {
    **{f"self_attn.{ours}": f"attn1.{theirs}" for ours, theirs in _ATTENTION.items()},
    **{f"cross_attn.{ours}": f"attn2.{theirs}" for ours, theirs in _ATTENTION.items()},
    "norm3": "norm2",
    "ffn.0": "ffn.net.0.proj",
    "ffn.2": "ffn.net.2",
    "modulation": "scale_shift_table",
}
_RESIDUAL = {
    "residual.0": "norm1",
    "residual.2": "conv1",
    "residual.3": "norm2",
    "residual.6": "conv2",
    "shortcut": "conv_shortcut",
}
_VAE_TOP = {
    "conv1": "quant_conv",
    "conv2": "post_quant_conv",
    **{
        f"{side}.{ours}": f"{side}.{theirs}"
        for side in ("encoder", "decoder")
        for ours, theirs in {
            "conv1": "conv_in",
            "middle.0": "mid_block.resnets.0",
            "middle.1": "mid_block.attentions.0",
            "middle.2": "mid_block.resnets.1",
            "head.0": "norm_out",
            "head.2": "conv_out",
        }.items()
    },
}
# Components that only one of the schemes has.
_MARKS: dict[Kind, dict[Scheme, frozenset[str]]] = {
    "dit": {
        "original": frozenset({"self_attn", "cross_attn", "text_embedding", "time_embedding", "head"}),
        "diffusers": frozenset({"attn1", "attn2", "condition_embedder", "proj_out", "scale_shift_table"}),
    },
    "vae": {
        "original": frozenset({"downsamples", "upsamples", "middle", "head", "residual"}),
        "diffusers": frozenset({"down_blocks", "up_blocks", "mid_block", "quant_conv", "post_quant_conv"}),
    },
}


def strip_wrappers(name: str) -> str:
    """Remove a leading ``model`` and every ``_fsdp_wrapped_module`` component."""
    parts = [part for part in name.split(".") if part != "_fsdp_wrapped_module"]
    return ".".join(parts[1:] if parts[:1] == ["model"] else parts)


def kind_of(names: Iterable[str]) -> Kind | None:
    """Which model stripped names belong to; None when it is none of them."""
    split = [name.split(".") for name in names]
    if any(parts[0] in ("blocks", "patch_embedding") for parts in split):
        return "dit"
    sides = [parts for parts in split if parts[0] in ("encoder", "decoder") and len(parts) > 1]
    if not sides:
        return None
    return "taehv" if all(parts[1].isdecimal() for parts in sides) else "vae"


def scheme_of(names: Iterable[str], kind: Kind) -> Scheme:
    """The scheme whose own components occur most in stripped names."""
    if kind == "taehv":
        return "original"
    parts = [set(name.split(".")) for name in names]
    counts = {scheme: sum(bool(mark & p) for p in parts) for scheme, mark in _MARKS[kind].items()}
    return max(counts, key=lambda scheme: counts[scheme])


def renamer(names: Iterable[str], kind: Kind, source: Scheme, target: Scheme) -> Callable[[str], str | None]:
    """Function from a stripped name in one scheme to the other; None for a name the scheme does not have.

    Parameters
    ----------
    names : iterable of str
        All names of the checkpoint: the number of residual blocks in a level follows from them.
    """
    if source == target or kind == "taehv":
        return lambda name: name
    if kind == "dit":
        top, block = _DIT_TOP, _DIT_BLOCK
        if target == "original":
            top, block = _inverse(top), _inverse(block)
        return lambda name: _rename_dit(name, top, block)
    units, inner = _vae_units(list(names), source), _RESIDUAL
    if target == "original":
        units, inner = _inverse(units), _inverse(inner)
    return lambda name: _rename_vae(name, units, inner)


def convert_state_dict(state: Mapping[str, Tensor], to: Scheme) -> dict[str, Tensor]:
    """Rename all tensors of a Wan DiT, Wan VAE or TAEHV checkpoint.

    Parameters
    ----------
    state : mapping of str to Tensor
        Original, wrapped or diffusers names.
    to : "original" or "diffusers"
        Scheme of the result. TAEHV has one scheme only.

    Raises
    ------
    CheckpointError
        A name that its scheme does not have, or two tensors that get one name.
    UsageError
        Another value of `to`.
    """
    if to not in ("original", "diffusers"):
        raise UsageError(f'to: expected "original" or "diffusers", got {to!r}')
    stripped = {name: strip_wrappers(name) for name in state}
    kind = kind_of(stripped.values())
    if kind is None:
        raise CheckpointError(f"expected the tensors of a Wan DiT, Wan VAE or TAEHV, got {few(state)}")
    rename = renamer(stripped.values(), kind, scheme_of(stripped.values(), kind), to)
    result: dict[str, Tensor] = {}
    unknown = []
    for name, tensor in state.items():
        new = rename(stripped[name])
        if new is None:
            unknown.append(name)
        elif new in result:
            raise CheckpointError(f"tensor {new}: expected once, got it under several names, one is {name}")
        else:
            result[new] = tensor
    if unknown:
        raise CheckpointError(f"{len(unknown)} unexpected: {few(unknown)}")
    return result


def few(names: Iterable[str], shown: int = 3) -> str:
    """The first few names, on one line, and how many more there are."""
    listed = [name if name.isprintable() else repr(name) for name in names]
    rest = f" and {len(listed) - shown} more" if len(listed) > shown else ""
    return (", ".join(listed[:shown]) or "nothing") + rest


def _inverse(table: Mapping[str, str]) -> dict[str, str]:
    return {theirs: ours for ours, theirs in table.items()}


def _rename_dit(name: str, top: Mapping[str, str], block: Mapping[str, str]) -> str | None:
    parts = name.split(".")
    if parts[0] != "blocks":
        return _rename_parameter(name, top)
    rest = _rename_parameter(".".join(parts[2:]), block)
    return None if rest is None else f"blocks.{parts[1]}.{rest}"


def _rename_parameter(name: str, table: Mapping[str, str]) -> str | None:
    module, _, leaf = name.rpartition(".")
    if module in table and leaf in ("weight", "bias"):
        return f"{table[module]}.{leaf}"
    return table.get(name)


def _rename_vae(name: str, units: Mapping[str, str], inner: Mapping[str, str]) -> str | None:
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        unit = units.get(".".join(parts[:cut]))
        if unit is not None:
            module, leaf = ".".join(parts[cut:-1]), parts[-1]
            return ".".join(part for part in (unit, inner.get(module, module), leaf) if part)
    return None


def _vae_units(names: list[str], source: Scheme) -> dict[str, str]:
    """Original -> diffusers name of every unit with parameters."""
    split = [name.split(".") for name in names]
    if source == "original":
        # The first resampling unit of the decoder ends its first level.
        upsamples = [p for p in split if p[:2] == ["decoder", "upsamples"] and p[3:4] == ["resample"]]
        blocks = min((int(p[2]) for p in upsamples if p[2].isdecimal()), default=len(split))
    else:
        first = [p for p in split if p[:4] == ["decoder", "up_blocks", "0", "resnets"]]
        blocks = len({p[4] for p in first if len(p) > 4})
    units = dict(_VAE_TOP)
    # No list of units is longer than the list of tensors.
    for i in range(len(split)):
        units[f"encoder.downsamples.{i}"] = f"encoder.down_blocks.{i}"
        level, place = divmod(i, blocks + 1)
        part = f"resnets.{place}" if place < blocks else "upsamplers.0"
        units[f"decoder.upsamples.{i}"] = f"decoder.up_blocks.{level}.{part}"
    return units
