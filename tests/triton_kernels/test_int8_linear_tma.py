"""The int8 linear layer through tensor descriptors, in Triton's interpreter."""

from __future__ import annotations

import os

import pytest
import torch
from support.ops import error

if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs Triton's interpreter: run by test_interpreter.py", allow_module_level=True)

from wavecore import ops
from wavecore.ops import reference_int8
from wavecore.triton_kernels import int8_linear


@pytest.mark.parametrize(("tokens", "inputs", "outputs"), [(130, 144, 150), (65, 48, 129), (256, 256, 256)])
def test_the_same_as_the_reference(
    monkeypatch: pytest.MonkeyPatch, tokens: int, inputs: int, outputs: int
) -> None:
    """Tokens, inputs and outputs that do not fill their last tile."""
    monkeypatch.setattr(int8_linear, "tile_shape", lambda *_: int8_linear.LARGE)
    x, residual, gate = (torch.randn(2, tokens, n) for n in (inputs, outputs, outputs))
    weight, bias = ops.pack_int8(torch.randn(outputs, inputs)), torch.randn(outputs)
    data, scale = ops.quantize_tokens(x)
    arguments = (data, scale, *weight, bias, residual, gate[:, :1], torch.float32)
    assert int8_linear.takes_tma(data.view(-1, inputs), weight.data, int8_linear.LARGE)
    exact = reference_int8.int8_linear(*arguments)
    assert error(int8_linear.int8_linear(*arguments), exact) <= 1e-5 * exact.abs().max().item()


def test_what_it_does_not_take() -> None:
    whole, odd = torch.zeros(130, 64, dtype=torch.int8), torch.zeros(130, 72, dtype=torch.int8)
    assert int8_linear.takes_tma(whole, whole, int8_linear.LARGE)
    assert not int8_linear.takes_tma(whole, whole, int8_linear.SMALL)
    assert not int8_linear.takes_tma(odd, whole, int8_linear.LARGE)
    assert not int8_linear.takes_tma(whole, whole.flatten()[8:8200].view(128, 64), int8_linear.LARGE)
