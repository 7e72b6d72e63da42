"""Launches of Triton kernels on a device that is not there: where each went, and what it was given.

Triton's own launcher runs, up to the compiler; what it asks of a driver is answered here. Tensors are placed
on a CUDA device in name and lie in host memory.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
from triton.backends.compiler import GPUTarget


class Placed(torch.Tensor):
    """A tensor in host memory that says it is on the second CUDA device; so do results made of it."""

    device = torch.device("cuda:1")  # type: ignore[assignment]
    is_cuda = True  # type: ignore[assignment]


def placed(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.as_subclass(Placed)


@dataclass
class Launch:
    """One launch: the kernel, the device and stream that it went to, its grid and arguments."""

    kernel: str
    device: int
    stream: int
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]


@dataclass
class Devices:
    """CUDA devices in name: which is current, and the current stream of each; kernels compiled for them."""

    current: int = 0
    streams: dict[int, int] = field(default_factory=dict)
    capability: int = 90
    launches: list[Launch] = field(default_factory=list)
    compiled: list[str] = field(default_factory=list)

    def exchange(self, device: int) -> int:
        before, self.current = self.current, self.current if device < 0 else device
        return before


def pretend(monkeypatch: pytest.MonkeyPatch, devices: Devices) -> None:
    """Let PyTorch and Triton ask `devices`, and note kernels in place of running them."""
    monkeypatch.setattr(torch.cuda, "_exchange_device", devices.exchange)
    monkeypatch.setattr(torch.cuda, "_maybe_exchange_device", devices.exchange)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: divmod(devices.capability, 10))
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(multi_processor_count=132)
    )
    driver = SimpleNamespace(
        get_current_device=lambda: devices.current,
        get_current_stream=lambda device: devices.streams[device],
        get_current_target=lambda: GPUTarget("cuda", devices.capability, 32),
    )

    class Kernel:
        function = packed_metadata = None

        def __init__(self, name: str) -> None:
            self.name = name

        def launch_metadata(self, *_: Any) -> None:
            return None

        def run(self, x: int, y: int, z: int, stream: int, *arguments: Any) -> None:
            devices.launches.append(Launch(self.name, devices.current, stream, (x, y, z), arguments[5:]))

    def note(function: Any, key: Any, signature: Any, device: int, *_: Any) -> Kernel:
        devices.compiled.append(function.__name__)
        kernel = function.device_caches[device][0][key] = Kernel(function.__name__)
        return kernel

    jit = triton.runtime.jit.JITFunction
    monkeypatch.setattr(jit, "_do_compile", note)
    monkeypatch.setattr(triton.runtime.driver, "_active", driver)


def forget_kernels(monkeypatch: pytest.MonkeyPatch, module: Any) -> list[str]:
    """Give the kernels of a module caches of their own for this test; their names."""
    names = []
    for name, kernel in vars(module).items():
        if isinstance(kernel, triton.runtime.jit.JITFunction) and kernel.__module__ == module.__name__:
            monkeypatch.setattr(kernel, "device_caches", defaultdict(kernel.create_binder))
            names += [name] if name.endswith("_kernel") else []
    return names
