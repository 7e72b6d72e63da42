"""Which implementation runs an operation on a tensor.

`auto` takes the native kernels on the CPU, Triton on CUDA, and PyTorch where the one that fits is missing.
A forced backend that cannot run is an error that says why.
"""

from __future__ import annotations

import importlib
import os
from importlib.util import find_spec
from types import SimpleNamespace

from torch import Tensor

from wavecore.errors import UsageError
from wavecore.ops.composite import complete

BACKENDS = ("auto", "native", "triton", "torch", "reference")


class Backends:
    """The selected backend and the implementations that this machine can load.

    Parameters
    ----------
    name : str
        One of `BACKENDS`.
    instruction_set : str or None
        CPU instruction set of the native kernels; the fastest that the processor has when None.
    """

    def __init__(self, name: str, instruction_set: str | None) -> None:
        self._loaded: dict[str, SimpleNamespace | str] = {}
        self._instruction_set = instruction_set
        self.select(name)

    def select(self, name: str) -> None:
        """Force a backend, or give the choice back with "auto"."""
        if name not in BACKENDS:
            raise UsageError(f"backend: expected one of {', '.join(BACKENDS)}, got {name!r}")
        self.name = name
        self._chosen: dict[str, SimpleNamespace] = {}

    def of(self, tensor: Tensor) -> SimpleNamespace:
        """What runs the operations on the device of `tensor`: a function for each, and the name `backend`."""
        device = "cpu" if tensor.is_cpu else tensor.device.type
        chosen = self._chosen.get(device)
        if chosen is None:
            chosen = self._chosen[device] = self._choose(device)
        return chosen

    def _choose(self, device: str) -> SimpleNamespace:
        if self.name in ("torch", "reference"):
            return self._load(self.name)
        wanted = {"cpu": "native", "cuda": "triton"}.get(device) if self.name == "auto" else self.name
        if self.name != "auto":
            reason = self.unavailable(self.name, device)
            if reason:
                raise UsageError(f"backend: {self.name} cannot run on {device}: {reason}")
        if wanted is None or self.unavailable(wanted, device):
            return self._load("torch")
        return self._load(wanted)

    def unavailable(self, name: str, device: str) -> str | None:
        """Why backend `name` cannot run on a type of device, or None when it can."""
        if name not in BACKENDS:
            raise UsageError(f"name: expected one of {', '.join(BACKENDS)}, got {name!r}")
        if name in ("auto", "torch", "reference"):
            return None
        if name == "native" and device != "cpu":
            return "it holds CPU kernels only"
        if name == "triton" and device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
            return "Triton needs a GPU, or TRITON_INTERPRET=1 for its interpreter"
        try:
            self._load(name)
        except ImportError as error:
            if name == "native" and find_spec("wavecore._native") is None:
                return "it was not built, since there was no C++ compiler when wavecore was installed"
            return str(error)
        return None

    def _load(self, name: str) -> SimpleNamespace:
        known = self._loaded.get(name)
        if known is None:
            try:
                known = _functions(name)
                if name == "native":
                    known.select_instruction_set(self._instruction_set)
            except ImportError as error:
                known = str(error)
            self._loaded[name] = known
        if isinstance(known, str):
            raise ImportError(known)
        return known


def _functions(name: str) -> SimpleNamespace:
    """The functions of a backend, which lie in a module each for floating-point and int8 operations."""
    file = {"torch": "eager"}.get(name, name)
    modules = [importlib.import_module(f"wavecore.ops.{file}{part}") for part in ("", "_int8")]
    functions = {key: value for module in modules for key, value in vars(module).items() if callable(value)}
    return complete(SimpleNamespace(backend=name, **functions))


def _from_environment() -> Backends:
    """What the environment variables choose; empty ones choose nothing."""
    name = os.environ.get("WAVECORE_BACKEND") or "auto"
    if name not in BACKENDS:
        raise UsageError(f"WAVECORE_BACKEND: expected one of {', '.join(BACKENDS)}, got {name!r}")
    return Backends(name, os.environ.get("WAVECORE_CPU") or None)


selected = _from_environment()
