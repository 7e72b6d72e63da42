from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, LOW_PRECISION, assert_accurate, error

from wavecore import ops
from wavecore.ops import eager, reference

EPS = 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 12, 192), (5,), (3, 33), (2, 2, 2, 2, 7), (4, 1)], ids=str)
def test_matches_the_reference(backend: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x, weight = torch.randn(shape, dtype=dtype), torch.randn(shape[-1], dtype=dtype)
    exact = reference.rms_norm(x.float(), weight.float(), EPS)
    assert_accurate(ops.rms_norm(x, weight, EPS), exact, eager.rms_norm(x, weight, EPS))


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
def test_float32_weight_of_a_low_precision_input(backend: str, dtype: torch.dtype) -> None:
    x, weight = torch.randn(6, 40, dtype=dtype), torch.randn(40).to(dtype).float()
    out = ops.rms_norm(x, weight, EPS)
    assert out.dtype == dtype
    exact = reference.rms_norm(x.float(), weight, EPS)
    assert_accurate(out, exact, exact.to(dtype))


def test_every_layout(backend: str) -> None:
    fused = torch.randn(2, 6, 3 * 48)
    weight = torch.randn(96)[::2]
    layouts = [fused[:, :, 48:96], fused[:, ::2, :48], fused[:, :, ::3], fused[:, :, :48].transpose(0, 1)]
    layouts += [torch.randn(48, 5).T, torch.randn(1, 1, 48).expand(3, 4, 48)]
    for x in layouts:
        exact = reference.rms_norm(x, weight, EPS)
        assert_accurate(ops.rms_norm(x, weight, EPS), exact, exact)


def test_rows_of_zeros_stay_zero(backend: str) -> None:
    assert torch.equal(ops.rms_norm(torch.zeros(2, 24), torch.ones(24), EPS), torch.zeros(2, 24))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_empty(backend: str, shape: tuple[int, ...]) -> None:
    assert ops.rms_norm(torch.randn(shape), torch.randn(8), EPS).shape == shape


def test_gradient(backend: str) -> None:
    inputs = [torch.randn(2, 6, 8, requires_grad=True), torch.randn(8, requires_grad=True)]
    seed = torch.randn(2, 6, 8)
    ours = torch.autograd.grad(ops.rms_norm(*inputs, EPS), inputs, seed)
    exact = torch.autograd.grad(reference.rms_norm(*inputs, EPS), inputs, seed)
    for gradient, expected in zip(ours, exact, strict=True):
        assert error(gradient, expected) <= 1e-5
