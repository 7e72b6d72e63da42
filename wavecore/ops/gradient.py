"""Whether a derivative is asked for: an operation then runs in PyTorch's code, or refuses."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.autograd import forward_ad

from wavecore.errors import UsageError


def wanted(*tensors: Tensor | None) -> bool:
    """Whether PyTorch's code has to run: a tensor requires a gradient, or tangents may be on their way.

    Tensors of forward-mode derivatives require no gradient, and kernels would drop their tangents.
    """
    if forward_ad._current_level >= 0:
        return True
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def refuse(**tensors: Tensor | None) -> None:
    """Raise an error for the first argument of an operation without a derivative that one is asked for.

    Raises
    ------
    UsageError
    """
    tangents = forward_ad._current_level >= 0
    if not tangents and not torch.is_grad_enabled():
        return
    for name, tensor in tensors.items():
        if tensor is None:
            continue
        if torch.is_grad_enabled() and tensor.requires_grad:
            raise UsageError(
                f"{name}: expected no gradient, since this operation is for inference, "
                "got a tensor that requires one; run it under torch.no_grad() or torch.inference_mode()"
            )
        if tangents and forward_ad.unpack_dual(tensor).tangent is not None:
            raise UsageError(
                f"{name}: expected no tangent, since this operation is for inference, got a dual tensor"
            )
