"""Whether tensors fit a model: each check is one line that names what does not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from wavecore.errors import CheckpointError
from wavecore.models.checkpoint_names import few

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def check_names(
    expected: int, title: str, missing: Sequence[str], unexpected: Sequence[str], label: str
) -> None:
    """Raise `CheckpointError` when there is a missing or unexpected name."""
    problems = [
        f"{len(found)} {what}: {few(found)}"
        for what, found in (("missing", missing), ("unexpected", unexpected))
        if found
    ]
    if problems:
        raise CheckpointError(
            f"{label}: expected the {expected} tensors of {title}, got {'; '.join(problems)}"
        )


def check_tensors(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], model: nn.Module, label: str
) -> torch.dtype:
    """Check shapes, then types, then values.

    Parameters
    ----------
    tensors : mapping of str to Tensor
        Under the names of `model`, all of them.
    names : mapping of str to str
        Those names -> the names in the file, for messages.
    model : Module
        Whose shapes are expected; may be on meta.
    label : str
        Name of the file, for messages.

    Returns
    -------
    torch.dtype
        The type of most values. Beside a 16-bit type there may be float32: diffusers keeps norms and
        modulation that way.

    Raises
    ------
    CheckpointError
        A tensor of another shape, of a type that is not a floating-point one or not that of the others,
        or with a value that is not finite.
    """
    _raise_for(
        [
            f"{names[name]}: expected shape {list(place.shape)}, got {list(tensors[name].shape)}"
            for name, place in model.state_dict().items()
            if tensors[name].shape != place.shape
        ],
        label,
    )
    sizes: Counter[torch.dtype] = Counter()
    for tensor in tensors.values():
        sizes[tensor.dtype] += tensor.numel()
    dtype = next((d for d, _ in sizes.most_common() if d in _DTYPES), torch.float32)
    allowed = {dtype, torch.float32} if dtype.itemsize == 2 else {dtype}
    _raise_for(
        [
            f"{names[name]}: expected {_title(dtype)}, got {_title(tensor.dtype)}"
            for name, tensor in tensors.items()
            if tensor.dtype not in allowed
        ],
        label,
    )
    for name, tensor in tensors.items():
        if not tensor.is_meta and not torch.isfinite(tensor).all():
            bad = "NaN" if tensor.isnan().any() else "infinity"
            raise CheckpointError(f"{label}: {names[name]}: expected finite values, got {bad}")
    return dtype


def move(tensors: Mapping[str, Tensor], dtype: torch.dtype, device: torch.device | str) -> dict[str, Tensor]:
    """Tensors of one type on one device; those that are so already are not copied."""
    meta = [name for name, tensor in tensors.items() if tensor.is_meta]
    if meta and torch.device(device).type != "meta":
        raise CheckpointError(f"expected tensors with values, got {len(meta)} on meta: {few(meta)}")
    return {name: tensor.to(device, dtype) for name, tensor in tensors.items()}


def _raise_for(wrong: Sequence[str], label: str) -> None:
    if wrong:
        count = f"{len(wrong)} tensors: " if len(wrong) > 1 else ""
        raise CheckpointError(f"{label}: {count}{few(wrong)}")


def _title(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
