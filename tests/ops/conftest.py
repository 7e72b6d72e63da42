"""Every test of an operation runs on each backend that this machine has, with poisoned results."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from wavecore import ops


def _backends() -> list[str]:
    names = ["torch"]
    if importlib.util.find_spec("wavecore._native") is not None:
        from wavecore.ops.native import INSTRUCTION_SETS

        names += [f"native-{name}" for name in INSTRUCTION_SETS]
    if os.environ.get("TRITON_INTERPRET") == "1":
        names.append("triton")
    return names


@pytest.fixture(params=_backends())
def backend(request: pytest.FixtureRequest) -> Iterator[str]:
    """Force a backend, and an instruction set of the native one."""
    name, _, instruction_set = request.param.partition("-")
    ops.set_backend(name)
    if instruction_set:
        from wavecore.ops import native

        native.select_instruction_set(instruction_set)
    yield request.param
    ops.set_backend("auto")
    if instruction_set:
        native.select_instruction_set(None)


@pytest.fixture
def host_backend(backend: str) -> str:
    """A backend that reads page ids and lengths on the host, and so can raise an error for them."""
    if backend == "triton":
        pytest.skip("Triton kernels check page ids in debug mode only")
    return backend


@pytest.fixture(autouse=True)
def seeded_and_poisoned() -> Iterator[None]:
    """Seed the inputs, and fill memory that PyTorch hands out uninitialised with NaN."""
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
