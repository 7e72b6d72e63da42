"""A CUDA device in name: tensors in host memory that say they are on it.

Shows, without a GPU, what a GPU would refuse: an operation on tensors of two devices, and NumPy on one that
was not copied back. What `torch.cuda` is asked for besides has to be replaced by the test.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

CUDA = torch.device("cuda", 0)
BETWEEN_DEVICES = ("copy_", "to", "__getitem__", "__setitem__", "index")  # of indices PyTorch moves itself

IN_PLACE = re.compile(r".*[^_]_|__i(?!nvert).*")


class OnDevice(torch.Tensor):
    """A tensor that says it is on the device; so do results made of it."""

    device = CUDA  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]
    is_cpu = False  # type: ignore[assignment]

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return call(func, args, kwargs or {})


class PretendedDevice(TorchFunctionMode):
    """Within it, what is made on "cuda" or moved there is `OnDevice`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return call(func, args, kwargs or {})


def on_host(value: Any) -> Any:
    return tree_map_only(OnDevice, lambda tensor: tensor.as_subclass(torch.Tensor), value)


def on_device(value: Any) -> Any:
    return tree_map_only(
        torch.Tensor,
        lambda tensor: tensor.as_subclass(OnDevice) if type(tensor) is torch.Tensor else tensor,
        value,
    )


def call(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = getattr(func, "__name__", str(func))
    tensors = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    here = [each for each in tensors if isinstance(each, OnDevice)]
    if name in ("as_subclass", "__set__", "_make_subclass"):
        return func(*args, **kwargs)
    if name == "pin_memory":
        return args[0]
    elsewhere = [each for each in tensors if not isinstance(each, OnDevice) and each.dim() > 0]
    if here and elsewhere and name not in BETWEEN_DEVICES:
        raise RuntimeError(f"{name}: expected all tensors on one device, got cuda and cpu")
    if here and name == "numpy":
        raise TypeError("numpy: expected a tensor on the CPU, got one on cuda")
    target = kwargs.pop("device", None)
    if name in ("to", "cpu", "cuda"):
        target = {"cpu": torch.device("cpu"), "cuda": CUDA}.get(name, target)
        moved = [each for each in args[1:] if isinstance(each, (str, torch.device))]
        target = torch.device(moved[0]) if moved else target
        kept = [each for each in on_host(args[1:]) if not isinstance(each, (str, torch.device))]
        made = on_host(args[0])
        made = torch.Tensor.to(made, *kept, **kwargs) if any(k is not None for k in kept) or kwargs else made
        if target is not None and made.data_ptr() == on_host(args[0]).data_ptr():
            made = made.clone()
    else:
        made = func(*on_host(args), **on_host(kwargs))
        if IN_PLACE.fullmatch(name) and here:
            return next(each for each in here if on_host(each).data_ptr() == made.data_ptr())
    there = torch.device(target).type == "cuda" if target is not None else bool(here)
    return on_device(made) if there else made
