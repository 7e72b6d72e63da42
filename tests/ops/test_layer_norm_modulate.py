from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, LOW_PRECISION, assert_accurate, error

from wavecore import ops
from wavecore.ops import eager, reference

EPS = 1e-6


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    ("slots", "tokens", "frames", "dim"),
    [(2, 12, 3, 192), (1, 5, 5, 7), (3, 4, 1, 1), (2, 6, 2, 33), (1, 3, 1, 1536)],
)
def test_matches_the_reference(
    backend: str, dtype: torch.dtype, slots: int, tokens: int, frames: int, dim: int
) -> None:
    x = torch.randn(slots, tokens, dim, dtype=dtype) * 2 + 0.5
    shift, scale = torch.randn(2, slots, frames, dim, dtype=dtype)
    exact = reference.layer_norm_modulate(x.float(), shift.float(), scale.float(), EPS)
    assert_accurate(
        ops.layer_norm_modulate(x, shift, scale, EPS),
        exact,
        eager.layer_norm_modulate(x, shift, scale, EPS),
    )


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
def test_float32_modulation_of_a_low_precision_state(backend: str, dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 40, dtype=dtype)
    shift, scale = torch.randn(2, 2, 3, 40)
    out = ops.layer_norm_modulate(x, shift, scale, EPS)
    assert out.dtype == dtype
    exact = reference.layer_norm_modulate(x.float(), shift, scale, EPS)
    assert_accurate(out, exact, exact.to(dtype))


def test_every_layout(backend: str) -> None:
    x = torch.randn(3, 8, 48)
    modulation = torch.randn(3, 2, 6, 48)
    shift, scale = modulation[:, :, 0], modulation[:, :, 4]
    exact = reference.layer_norm_modulate(x, shift, scale, EPS)
    layouts = {
        "last stride": torch.randn(3, 8, 96)[:, :, ::2].copy_(x),
        "transposed": x.transpose(1, 2).contiguous().transpose(1, 2),
        "slots inside": x.transpose(0, 1).contiguous().transpose(0, 1),
        "slice": torch.cat((x, x), dim=-1)[:, :, 48:],
    }
    for name, layout in layouts.items():
        assert not layout.is_contiguous(), name
        assert_accurate(ops.layer_norm_modulate(layout, shift, scale, EPS), exact, exact)
    spread = torch.randn(3, 2, 48, 2)[..., 0].copy_(scale)
    assert_accurate(ops.layer_norm_modulate(x, shift, spread, EPS), exact, exact)
    same = shift[:1].expand(3, -1, -1)
    exact = reference.layer_norm_modulate(x, same, scale, EPS)
    assert_accurate(ops.layer_norm_modulate(x, same, scale, EPS), exact, exact)


def test_a_large_mean_does_not_cancel(backend: str) -> None:
    x = torch.randn(1, 4, 192) + 1000
    zeros = torch.zeros(1, 1, 192)
    exact = reference.layer_norm_modulate(x, zeros, zeros, EPS)
    assert (ops.layer_norm_modulate(x, zeros, zeros, EPS) - exact).abs().max() <= 1e-3


def test_a_constant_row_becomes_the_shift(backend: str) -> None:
    shift = torch.randn(1, 1, 30)
    out = ops.layer_norm_modulate(torch.zeros(1, 2, 30), shift, torch.randn(1, 1, 30), EPS)
    assert torch.equal(out, shift.expand(1, 2, 30))


@pytest.mark.parametrize("shape", [(0, 4, 8), (2, 0, 8)])
def test_empty(backend: str, shape: tuple[int, int, int]) -> None:
    modulation = torch.randn(shape[0], 2, shape[2])
    assert ops.layer_norm_modulate(torch.randn(shape), modulation, modulation, EPS).shape == shape


def test_gradient(backend: str) -> None:
    inputs = [torch.randn(2, 6, 8), torch.randn(2, 3, 8), torch.randn(2, 3, 8)]
    for tensor in inputs:
        tensor.requires_grad_()
    seed = torch.randn(2, 6, 8)
    ours = torch.autograd.grad(ops.layer_norm_modulate(*inputs, EPS), inputs, seed)
    exact = torch.autograd.grad(reference.layer_norm_modulate(*inputs, EPS), inputs, seed)
    for gradient, expected in zip(ours, exact, strict=True):
        assert error(gradient, expected) <= 1e-5


@pytest.mark.parametrize("dtype", LOW_PRECISION, ids=str)
@pytest.mark.parametrize("dim", [64, 70])
def test_nan_stays_nan(backend: str, dtype: torch.dtype, dim: int) -> None:
    """In a row, where every result becomes NaN, and in a modulation of any bits, where its column does."""
    x, shift = torch.randn(1, 3, dim, dtype=dtype), torch.randn(1, 1, dim)
    x[0, 0, 5], x[0, 1, dim - 1] = torch.nan, torch.inf
    shift.view(torch.int32)[0, 0, 8:10] = torch.tensor([0x7F800001, 0x7FFFFFFF])
    out = ops.layer_norm_modulate(x, shift, torch.zeros_like(shift), EPS)
    assert out[0, :2].isnan().all()
    assert out[0, 2].isnan().nonzero().flatten().tolist() == [8, 9]
