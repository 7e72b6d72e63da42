"""Quantisation of activations: plainly, behind GELU, behind a modulated layer norm."""

from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, error
from torch import Tensor

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import QuantizedTokens, reference_int8


def assert_same(actual: QuantizedTokens, exact: tuple[Tensor, Tensor], rounding: bool = False) -> None:
    """The same integers and scales; with `rounding`, neighbours where a number lies between two integers."""
    assert actual.data.dtype == torch.int8 and actual.data.is_contiguous() and actual.scale.is_contiguous()
    assert error(actual.scale, exact[1]) <= 2e-6 * max(1.0, exact[1].nan_to_num().abs().max().item())
    differing = (actual.data.int() - exact[0].int()).abs()
    assert differing.max() <= int(rounding)
    assert differing.sum() <= 1e-3 * differing.numel()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 12, 192), (5, 7), (1, 1), (3, 33), (9,), (2, 1000)])
def test_matches_the_reference(backend: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=dtype) * 3
    assert_same(ops.quantize_tokens(x), reference_int8.quantize_tokens(x, False))
    assert_same(ops.quantize_tokens(x, gelu=True), reference_int8.quantize_tokens(x, True), rounding=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("dim", [7, 96, 200])
def test_behind_a_modulated_layer_norm(backend: str, dtype: torch.dtype, dim: int) -> None:
    x = torch.randn(2, 12, dim, dtype=dtype) * 2 + 0.5
    shift, scale = torch.randn(2, 2, 3, dim, dtype=dtype)
    actual = ops.layer_norm_modulate_quantize(x, shift, scale, 1e-6)
    assert_same(actual, reference_int8.layer_norm_modulate_quantize(x, shift, scale, 1e-6), rounding=True)
    wide = ops.layer_norm_modulate_quantize(x, shift.float(), scale.float(), 1e-6)
    assert_same(wide, (actual.data, actual.scale), rounding=True)


def test_ties_go_to_the_even_integer(backend: str) -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, -127.0]])
    assert ops.quantize_tokens(x).data.tolist() == [[127, 0, 2, 2, 0, -2, -2, -127]]


def test_all_zero_and_tiny_rows_are_zeros(backend: str) -> None:
    x = torch.stack((torch.zeros(70), torch.full((70,), 1e-38), torch.ones(70)))
    actual = ops.quantize_tokens(x)
    assert not actual.data[:2].any() and actual.scale[:2].tolist() == [0, 0]
    assert actual.data[2].eq(127).all()


def test_a_row_of_the_smallest_halves_keeps_its_shape(backend: str) -> None:
    """Scales are float32: a subnormal half divided by 127 would be zero in half."""
    x = torch.tensor([[127.0, -127.0, 64.0, 0.0]]).mul(2.0**-24).half()
    actual = ops.quantize_tokens(x)
    assert actual.data.tolist() == [[127, -127, 64, 0]]
    assert actual.scale.tolist() == [2.0**-24]


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 8, 69])
def test_a_row_that_is_not_finite_is_marked_and_no_other(backend: str, value: float, place: int) -> None:
    x = torch.randn(3, 70)
    x[1, place] = value
    scale = ops.quantize_tokens(x).scale
    assert scale.isnan().tolist() == [False, True, False]


def test_every_layout(backend: str) -> None:
    x = torch.randn(3, 8, 96)
    exact = reference_int8.quantize_tokens(x, False)
    for layout in (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x.mT.contiguous().mT,
        x.repeat(1, 1, 2)[..., :96],
    ):
        assert_same(ops.quantize_tokens(layout), exact)


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_tokens(backend: str, shape: tuple[int, ...]) -> None:
    actual = ops.quantize_tokens(torch.empty(shape))
    assert actual.data.shape == shape and actual.scale.shape == shape[:-1]
    if len(shape) == 3:
        normed = ops.layer_norm_modulate_quantize(
            torch.empty(shape), torch.ones(2, 1, 8), torch.ones(2, 1, 8), 1e-6
        )
        assert normed.data.shape == shape


def test_a_wrong_argument_is_named(backend: str) -> None:
    with pytest.raises(UsageError, match=r"^x: expected \[..., K\], got \[\]$"):
        ops.quantize_tokens(torch.tensor(1.0))
    with pytest.raises(UsageError, match=r"^x: expected float32, bfloat16 or float16, got torch.int8$"):
        ops.quantize_tokens(torch.ones(3, 4, dtype=torch.int8))
    with pytest.raises(UsageError, match=r"^scale: expected the shape of shift"):
        ops.layer_norm_modulate_quantize(torch.ones(1, 2, 4), torch.ones(1, 2, 4), torch.ones(1, 1, 4), 1e-6)
