"""Between the host and a device: copies that nobody waits for, the wait where one is meant, whole modules."""

from __future__ import annotations

import copy
from itertools import chain

import torch
from torch import Tensor, nn


def upload(tensor: Tensor, device: torch.device | str) -> Tensor:
    """Copy a host tensor to a device, in order with what the device does and without waiting for it.

    A copy from ordinary memory would make the host wait until the GPU has done everything before it; so it
    goes through pinned memory, which PyTorch keeps until the copy is done.
    """
    target = torch.device(device)
    if target.type == "cpu":
        return tensor
    if target.type == "cuda":
        tensor = tensor.pin_memory()
    return tensor.to(target, non_blocking=True)


def wait_for(device: torch.device | str) -> None:
    """Wait until a device has done what the calling thread has given it, as a CPU has in any case."""
    where = torch.device(device)
    if where.type == "cuda":
        torch.cuda.current_stream(where).synchronize()


def on_host(module: nn.Module) -> nn.Module:
    """A module, or a copy of it in the memory of the host where it is on a device: to be sent elsewhere.

    Bytes of tensors on a GPU name it, and are read again on the GPU of that number, if there is one.
    """
    tensors = chain(module.parameters(), module.buffers())
    elsewhere = any(tensor.device.type != "cpu" for tensor in tensors)
    return copy.deepcopy(module).cpu() if elsewhere else module
