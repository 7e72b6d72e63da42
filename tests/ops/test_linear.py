from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.ops import DTYPES, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import eager, reference

SHAPES = [(1, 1, 1), (7, 20, 33), (50, 192, 130), (97, 300, 20), (2, 64, 520), (5, 13, 3)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("rows", "inputs", "outputs"), SHAPES)
def test_matches_the_reference(
    backend: str, dtype: torch.dtype, rows: int, inputs: int, outputs: int
) -> None:
    x, bias = torch.randn(rows, inputs, dtype=dtype), torch.randn(outputs, dtype=dtype)
    weight = (torch.randn(outputs, inputs) * inputs**-0.5).to(dtype)
    for used, gelu in ((bias, False), (bias.float(), True), (None, True)):
        wide = None if used is None else used.float()
        exact = reference.linear(x.float(), weight.float(), wide, gelu, None, None)
        plain = eager.linear(x, weight, used, gelu, None, None)
        assert_accurate(ops.linear(x, weight, used, gelu=gelu), exact, plain)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("gate_dtype", [None, torch.float32], ids=str)
def test_gate_and_residual(backend: str, dtype: torch.dtype, gate_dtype: torch.dtype | None) -> None:
    x, residual = torch.randn(2, 12, 40, dtype=dtype), torch.randn(2, 12, 50, dtype=dtype)
    weight, bias = (torch.randn(50, 40) / 6).to(dtype), torch.randn(50, dtype=dtype)
    gate = torch.randn(2, 3, 50, dtype=gate_dtype or dtype)
    for used in (gate, None):
        wide = None if used is None else used.float()
        exact = reference.linear(x.float(), weight.float(), bias.float(), False, residual.float(), wide)
        plain = eager.linear(x, weight, bias, False, residual, used)
        assert_accurate(ops.linear(x, weight, bias, residual=residual, gate=used), exact, plain)


def test_a_row_does_not_depend_on_those_beside_it(backend: str) -> None:
    if not backend.startswith("native"):
        pytest.skip("a library's matrix product may depend on the batch")
    x, weight, bias = torch.randn(101, 70), torch.randn(90, 70), torch.randn(90)
    whole = ops.linear(x, weight, bias, gelu=True)
    for rows in (slice(0, 1), slice(7, 12), slice(50, 101)):
        assert torch.equal(ops.linear(x[rows], weight, bias, gelu=True), whole[rows])


def test_every_layout(backend: str) -> None:
    x, residual, gate = torch.randn(2, 6, 40), torch.randn(2, 6, 24), torch.randn(2, 3, 24)
    weight, bias = torch.randn(24, 40) / 6, torch.randn(24)
    expected = ops.linear(x, weight, bias, residual=residual, gate=gate)
    actual = ops.linear(
        x.transpose(0, 1).contiguous().transpose(0, 1),
        weight.T.contiguous().T,
        torch.stack((bias, bias), -1)[:, 0],
        residual=residual.mT.contiguous().mT,
        gate=torch.stack((gate, gate), 2)[:, :, 1],
    )
    assert error(actual, expected) <= 1e-5
    assert error(ops.linear(torch.cat((x, x), -1)[..., 40:], weight), ops.linear(x, weight)) <= 1e-5


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8)])
def test_no_tokens(backend: str, shape: tuple[int, ...]) -> None:
    assert ops.linear(torch.empty(shape), torch.randn(5, 8)).shape == (*shape[:-1], 5)


def test_no_inputs_give_the_bias(backend: str) -> None:
    bias = torch.randn(5)
    assert torch.equal(ops.linear(torch.empty(3, 0), torch.empty(5, 0), bias), bias.expand(3, 5))


def test_nan_spoils_its_own_row_only(backend: str) -> None:
    x = torch.randn(3, 70)
    x[1, 69] = torch.nan
    out = ops.linear(x, torch.randn(20, 70))
    assert out.isnan().all(1).tolist() == [False, True, False] and out[::2].isfinite().all()


def test_is_differentiable(backend: str) -> None:
    x, weight = torch.randn(4, 8, requires_grad=True), torch.randn(5, 8, requires_grad=True)
    expected = torch.autograd.grad(F.gelu(F.linear(x, weight), approximate="tanh").sum(), (x, weight))
    actual = torch.autograd.grad(ops.linear(x, weight, gelu=True).sum(), (x, weight))
    assert all(error(a, b) <= 1e-5 for a, b in zip(actual, expected, strict=True))


X, WEIGHT = torch.randn(2, 6, 8), torch.randn(5, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x": X[..., :4]}, "weight: expected [outputs, inputs] = [5, 4], got [5, 8]"),
        ({"x": X.int()}, "x: expected float32, bfloat16 or float16, got torch.int32"),
        ({"weight": WEIGHT.half()}, "weight: expected torch.float32 as x, got torch.float16"),
        ({"weight": WEIGHT[0]}, "weight: expected [outputs, inputs], got [8]"),
        ({"bias": torch.randn(4)}, "bias: expected [outputs] = [5], got [4]"),
        ({"gate": torch.randn(2, 3, 5)}, "gate: expected together with residual, got only the gate"),
        (
            {"residual": torch.randn(2, 6, 4)},
            "residual: expected the shape of the result = [2, 6, 5], got [2, 6, 4]",
        ),
        ({"bias": torch.randn(5, device="meta")}, "bias: expected device cpu as x, got meta"),
    ],
)
def test_a_wrong_argument_is_named(backend: str, changes: dict, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        ops.linear(**{"x": X, "weight": WEIGHT, **changes})
    assert str(caught.value) == message
