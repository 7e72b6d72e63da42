"""Derivatives of operations: right, or refused; never silently missing."""

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import forward_ad
from torch.func import jvp

from wavecore import ops
from wavecore.errors import UsageError

S, FRAMES, T, H, D = 2, 2, 6, 2, 8
TABLE, LENGTHS = torch.tensor([[0, 1], [2, 3]], dtype=torch.int32), torch.full((S, 2), 3, dtype=torch.int32)


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def layer_norm_modulate(x):
    shift, scale = numbers(2, S, FRAMES, H * D)
    return ops.layer_norm_modulate(x, shift, scale, 1e-6)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (ops.gelu, lambda x: F.gelu(x, approximate="tanh")),
        (
            lambda x: ops.rms_norm(x, torch.ones(H * D), 1e-6),
            lambda x: F.rms_norm(x, (H * D,), torch.ones(H * D), 1e-6),
        ),
        (lambda x: ops.linear(x, numbers(5, H * D)), lambda x: F.linear(x, numbers(5, H * D))),
        (lambda x: ops.gate_residual(x, x, numbers(S, 1, H * D)), lambda x: x + x * numbers(S, 1, H * D)),
    ],
    ids=["gelu", "rms_norm", "linear", "gate_residual"],
)
def test_forward_mode_derivatives_are_those_of_pytorch(run, expected):
    x, tangent = numbers(S, T, H * D), numbers(2, S, T, H * D)[1]
    for found, right in zip(jvp(run, (x,), (tangent,)), jvp(expected, (x,), (tangent,)), strict=True):
        torch.testing.assert_close(found, right, atol=1e-5, rtol=1e-5)


def test_a_sampler_can_be_trained_through():
    x, noise = numbers(2, S, 3, FRAMES, 4, 4)
    velocity = torch.zeros_like(x).requires_grad_()
    sigma, after = torch.full((S, FRAMES), 0.5), torch.full((S, FRAMES), 0.25)
    x0, _ = ops.renoise_step(x, velocity, noise, sigma, after)
    x0.sum().backward()
    torch.testing.assert_close(velocity.grad, torch.full_like(x, -0.5))


KEYS, QUERIES = numbers(5, 4, H, D), numbers(S, T, H, D)
PACKED = ops.pack_int8(numbers(7, H * D))
REFUSED = {
    "paged_attention q": lambda t: ops.paged_attention(t(QUERIES), KEYS, KEYS, TABLE, LENGTHS),
    "paged_attention k_pages": lambda t: ops.paged_attention(QUERIES, t(KEYS), KEYS, TABLE, LENGTHS),
    "paged_attention v_pages": lambda t: ops.paged_attention(QUERIES, KEYS, t(KEYS), TABLE, LENGTHS),
    "paged_attention_int8 q": lambda t: ops.paged_attention_int8(
        t(QUERIES), ops.empty_key_pages(5, 4, H, D), KEYS, TABLE, LENGTHS
    ),
    "quantize_tokens x": lambda t: ops.quantize_tokens(t(numbers(S, T, H * D))),
    "int8_linear x": lambda t: ops.int8_linear(t(numbers(S, T, H * D)), PACKED),
    "int8_linear residual": lambda t: ops.int8_linear(
        numbers(S, T, H * D), PACKED, residual=t(numbers(S, T, 7))
    ),
    "rope_shift unroped_pages": lambda t: ops.rope_shift(
        t(KEYS), TABLE[0], KEYS.clone(), TABLE[1], numbers(2, 4, D // 2, 2)
    ),
}


@pytest.mark.parametrize("call", REFUSED)
def test_what_has_no_derivative_is_refused(call):
    run, name = REFUSED[call], call.split()[1]
    with pytest.raises(UsageError, match=f"{name}: expected no gradient"):
        run(lambda tensor: tensor.clone().requires_grad_())
    with forward_ad.dual_level(), pytest.raises(UsageError, match=f"{name}: expected no tangent"):
        run(lambda tensor: forward_ad.make_dual(tensor, torch.ones_like(tensor)))
    with torch.no_grad():
        run(lambda tensor: tensor.clone().requires_grad_())
