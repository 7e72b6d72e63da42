from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from support.ops import DTYPES, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import reference_int8


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 12, 192), (5, 7), (1,), (3, 4, 2, 33)])
def test_matches_the_reference(backend: str, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=dtype) * 4
    assert_accurate(ops.gelu(x), reference_int8.gelu(x.float()), F.gelu(x, approximate="tanh"))


def test_tails(backend: str) -> None:
    """Far out the result is the argument or nothing, and never NaN."""
    x = torch.tensor([-1e4, -88.0, -12.0, -0.0, 0.0, 12.0, 88.0, 1e4, torch.inf])
    assert error(ops.gelu(x), x.clamp(min=0)) <= 1e-6
    assert ops.gelu(torch.tensor([torch.nan])).isnan().all()


def test_every_layout(backend: str) -> None:
    x = torch.randn(3, 8, 96)
    exact = reference_int8.gelu(x)
    for layout in (
        x.transpose(0, 1).contiguous().transpose(0, 1),
        x.mT.contiguous().mT,
        x.repeat(1, 1, 2)[..., :96],
    ):
        assert_accurate(ops.gelu(layout), exact, exact)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)])
def test_empty(backend: str, shape: tuple[int, ...]) -> None:
    assert ops.gelu(torch.empty(shape)).shape == shape


def test_is_differentiable(backend: str) -> None:
    x = torch.randn(4, requires_grad=True)
    expected = torch.autograd.grad(F.gelu(x, approximate="tanh").sum(), x)[0]
    assert torch.equal(torch.autograd.grad(ops.gelu(x).sum(), x)[0], expected)


def test_a_wrong_argument_is_named(backend: str) -> None:
    with pytest.raises(UsageError, match=r"^x: expected float32, bfloat16 or float16, got torch.int64$"):
        ops.gelu(torch.ones(3, dtype=torch.int64))
