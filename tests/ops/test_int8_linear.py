from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.ops import DTYPES, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import reference_int8

SHAPES = [(1, 1, 1), (7, 20, 33), (100, 192, 130), (97, 1100, 20), (2, 64, 1040), (193, 70, 16)]


def relative(actual: torch.Tensor, exact: torch.Tensor) -> float:
    return ((actual.double() - exact.double()).norm() / exact.double().norm()).item()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_matches_the_reference(
    backend: str, dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    x, bias = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    weight = ops.pack_int8(torch.randn(outputs, inputs) * inputs**-0.5)
    tokens = ops.quantize_tokens(x)
    for added in (bias, bias.float(), None):
        exact = reference_int8.int8_linear(
            *tokens, *weight, None if added is None else added.float(), None, None, torch.float32
        )
        actual = ops.int8_linear(tokens, weight, added, dtype=dtype)
        assert actual.dtype == dtype
        assert_accurate(actual, exact, exact.to(dtype))
    assert torch.equal(ops.int8_linear(x, weight, bias), ops.int8_linear(tokens, weight, bias, dtype=dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate_dtype", [None, torch.float32], ids=str)
def test_gate_and_residual(backend: str, dtype: torch.dtype, gate_dtype: torch.dtype | None) -> None:
    x, residual = torch.randn(2, 12, 40, dtype=dtype), torch.randn(2, 12, 50, dtype=dtype)
    bias, weight = torch.randn(50), ops.pack_int8(torch.randn(50, 40))
    gate = torch.randn(2, 3, 50, dtype=gate_dtype or dtype)
    tokens = ops.quantize_tokens(x)
    for used in (gate, None):
        exact = reference_int8.int8_linear(
            *tokens, *weight, bias, residual.float(), None if used is None else used.float(), torch.float32
        )
        actual = ops.int8_linear(tokens, weight, bias, residual=residual, gate=used)
        assert_accurate(actual, exact, exact.to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_error_against_the_layer_that_it_stands_for(backend: str, dtype: torch.dtype) -> None:
    """At most 1.5 % on normal data."""
    x, weight, bias = torch.randn(64, 512), torch.randn(96, 512) * 512**-0.5, torch.randn(96)
    exact = F.linear(x.double(), weight.double(), bias.double())
    assert relative(ops.int8_linear(x.to(dtype), ops.pack_int8(weight), bias), exact) <= 0.015
    behind = F.linear(F.gelu(x.double(), approximate="tanh"), weight.double())
    assert relative(ops.int8_linear(x.to(dtype), ops.pack_int8(weight), gelu=True), behind) <= 0.015


def test_sums_of_the_largest_numbers_do_not_overflow(backend: str) -> None:
    """All integers at their limits: no pair of products saturates at 16 bits, no sum is rounded."""
    for sign in (1, -1):
        x, weight = torch.full((3, 4096), 127.0), torch.full((5, 4096), 127.0 * sign)
        assert torch.equal(
            ops.int8_linear(x, ops.pack_int8(weight)), torch.full((3, 5), sign * 127.0**2 * 4096)
        )


def test_all_zero_rows_and_channels_give_the_bias(backend: str) -> None:
    x, weight, bias = torch.randn(3, 70), torch.randn(20, 70), torch.randn(20)
    x[1], weight[4] = 0, 0
    out = ops.int8_linear(x, ops.pack_int8(weight), bias)
    assert torch.equal(out[1], bias)
    assert torch.equal(out[:, 4], bias[4].expand(3))


def test_a_token_that_is_not_finite_spoils_its_own_row_only(backend: str) -> None:
    x = torch.randn(3, 70)
    x[1, 5] = torch.nan
    out = ops.int8_linear(x, ops.pack_int8(torch.randn(20, 70)))
    assert out.isnan().all(1).tolist() == [False, True, False] and out[::2].isfinite().all()


def test_every_layout(backend: str) -> None:
    x, residual, gate = torch.randn(2, 6, 40), torch.randn(2, 6, 24), torch.randn(2, 3, 24)
    weight, bias = ops.pack_int8(torch.randn(24, 40)), torch.randn(24)
    expected = ops.int8_linear(x, weight, bias, residual=residual, gate=gate)
    tokens = ops.quantize_tokens(x)
    moved = ops.QuantizedTokens(
        tokens.data.transpose(0, 1).contiguous().transpose(0, 1), tokens.scale.T.contiguous().T
    )
    actual = ops.int8_linear(
        moved,
        weight,
        torch.stack((bias, bias), -1)[:, 0],
        residual=residual.mT.contiguous().mT,
        gate=torch.stack((gate, gate), 2)[:, :, 1],
    )
    assert error(actual, expected) == 0
    fused = torch.cat((x, x), -1)[..., 40:]
    assert error(ops.int8_linear(fused, weight, bias), ops.int8_linear(x, weight, bias)) == 0


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_tokens(backend: str, shape: tuple[int, ...]) -> None:
    weight = ops.pack_int8(torch.randn(5, 8))
    assert ops.int8_linear(torch.empty(shape), weight).shape == (*shape[:-1], 5)
    if len(shape) == 3:
        residual, gate = torch.empty(2, 0, 5), torch.randn(2, 1, 5)
        assert ops.int8_linear(torch.empty(shape), weight, residual=residual, gate=gate).shape == (2, 0, 5)


X, PACKED = torch.randn(2, 6, 8), ops.pack_int8(torch.randn(5, 8))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X.int()}, "x: expected float32, bfloat16 or float16, got torch.int32"),
        (
            {"x": torch.randn(2, 6, 80)},
            "packed_weight.data: expected a weight of 5 outputs and 80 inputs, padded",
        ),
        ({"bias": torch.randn(4)}, "bias: expected [outputs] = [5], got [4]"),
        (
            {"bias": torch.randn(5).double()},
            "bias: expected torch.float32, or torch.float32, got torch.float64",
        ),
        ({"gate": torch.randn(2, 3, 5)}, "gate: expected together with residual, got only the gate"),
        (
            {"residual": torch.randn(2, 6, 4)},
            "residual: expected the shape of the result = [2, 6, 5], got [2, 6, 4]",
        ),
        ({"residual": torch.randn(2, 6, 5).half()}, "residual: expected torch.float32, got torch.float16"),
        (
            {"residual": torch.randn(2, 6, 5), "gate": torch.randn(2, 4, 5)},
            "gate: expected f to divide the 6 tokens of a slot, got f = 4",
        ),
        (
            {"packed_weight": ops.PackedInt8(PACKED.data.int(), PACKED.scale)},
            "packed_weight.data: expected torch.int8",
        ),
        ({"bias": torch.randn(5, device="meta")}, "bias: expected device cpu as x.data, got meta"),
        ({"dtype": torch.float64}, "dtype: expected float32, bfloat16 or float16, got torch.float64"),
    ],
)
def test_a_wrong_argument_is_named(backend: str, changes: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.int8_linear(**{"x": X, "packed_weight": PACKED, **changes})
    assert message in str(caught.value)


def test_weights_that_cannot_be_packed() -> None:
    with pytest.raises(UsageError, match=r"^weight: expected finite numbers, got NaN or infinity$"):
        ops.pack_int8(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(UsageError, match=r"^weight: expected a floating-point \[outputs, inputs\], got"):
        ops.pack_int8(torch.ones(3, dtype=torch.float32))


def test_a_gradient_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^x: expected no gradient"):
        ops.int8_linear(torch.ones(1, 8, requires_grad=True), PACKED)
