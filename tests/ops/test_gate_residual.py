from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, LOW_PRECISION, assert_accurate, error

from wavecore import ops
from wavecore.ops import eager, reference


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("slots", "tokens", "frames", "dim"), [(2, 12, 3, 192), (1, 5, 5, 7), (3, 4, 1, 1), (2, 6, 2, 33)]
)
def test_matches_the_reference(
    backend: str, dtype: torch.dtype, slots: int, tokens: int, frames: int, dim: int
) -> None:
    x, y = torch.randn(2, slots, tokens, dim, dtype=dtype)
    gate = torch.randn(slots, frames, dim, dtype=dtype)
    exact = reference.gate_residual(x.float(), y.float(), gate.float())
    assert_accurate(ops.gate_residual(x, y, gate), exact, eager.gate_residual(x, y, gate))


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
def test_float32_gate_of_a_low_precision_state(backend: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(2, 2, 6, 40, dtype=dtype)
    gate = torch.randn(2, 3, 40)
    out = ops.gate_residual(x, y, gate)
    assert out.dtype == dtype
    exact = reference.gate_residual(x.float(), y.float(), gate)
    assert_accurate(out, exact, exact.to(dtype))


def test_every_layout(backend: str) -> None:
    x, y = torch.randn(2, 3, 8, 48)
    gate = torch.randn(3, 2, 6, 48)[:, :, 2]
    exact = reference.gate_residual(x, y, gate)
    spread = torch.randn(3, 8, 96)[:, :, ::2].copy_(y)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert_accurate(ops.gate_residual(transposed, spread, gate), exact, exact)
    assert_accurate(ops.gate_residual(x, y.mT.contiguous().mT, gate), exact, exact)


def test_the_inputs_stay(backend: str) -> None:
    x, y = torch.randn(2, 1, 4, 16)
    gate = torch.randn(1, 1, 16)
    before = x.clone(), y.clone(), gate.clone()
    ops.gate_residual(x, y, gate)
    assert all(torch.equal(a, b) for a, b in zip((x, y, gate), before, strict=True))


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8)])
def test_empty(backend: str, shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape)
    assert ops.gate_residual(x, x, torch.randn(shape[0], 1, shape[2])).shape == shape


def test_gradient(backend: str) -> None:
    inputs = [torch.randn(2, 6, 8), torch.randn(2, 6, 8), torch.randn(2, 3, 8)]
    for tensor in inputs:
        tensor.requires_grad_()
    seed = torch.randn(2, 6, 8)
    ours = torch.autograd.grad(ops.gate_residual(*inputs), inputs, seed)
    exact = torch.autograd.grad(reference.gate_residual(*inputs), inputs, seed)
    for gradient, expected in zip(ours, exact, strict=True):
        assert error(gradient, expected) <= 1e-5
