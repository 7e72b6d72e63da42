"""Halves of a transformer layer in one call: the same as their parts one by one."""

from __future__ import annotations

import pytest
import torch
from support.blocks import DIM, FRAMES, HEAD_DIM, HEADS, SLOTS, TOKENS, output_arguments, query_arguments
from support.ops import DTYPES, assert_accurate, error, rope_table
from torch import Tensor

from wavecore import ops
from wavecore.errors import UsageError


def queries_by_parts(x, modulation, weights, rope, k_pages, v_pages, ids, eps, unroped, unroped_ids):
    n = ops.layer_norm_modulate(x, modulation[:, :, 0], modulation[:, :, 1], eps)
    q, k, v = (ops.linear(n, *weights[at : at + 2]) for at in (0, 2, 4))
    return ops.qkv_page_write(
        q, k, v, weights.q_norm, weights.k_norm, rope, k_pages, v_pages, ids, eps, unroped, unroped_ids
    )


def output_by_parts(attended, x, modulation, weights, keys, values, eps):
    gate1, shift, scale, gate2 = modulation[:, :, 2:].unbind(2)
    x = ops.linear(attended.flatten(-2), weights.out, weights.out_bias, residual=x, gate=gate1)
    n = torch.nn.functional.layer_norm(x, x.shape[-1:], weights.norm, weights.norm_bias, eps)
    q = ops.rms_norm(ops.linear(n, weights.cross_q, weights.cross_q_bias), weights.cross_q_norm, eps)
    a = ops.attention(q.view(keys.shape[0], -1, HEADS, HEAD_DIM), keys, values).reshape(x.shape)
    x = ops.linear(a, weights.cross_out, weights.cross_out_bias, residual=x)
    hidden = ops.linear(ops.layer_norm_modulate(x, shift, scale, eps), weights.up, weights.up_bias, gelu=True)
    return ops.linear(hidden, weights.down, weights.down_bias, residual=x, gate=gate2)


def double(value: object) -> object:
    if isinstance(value, tuple):
        return type(value)(*(part.double() for part in value))
    return value.double() if isinstance(value, Tensor) and value.is_floating_point() else value


def exact_output(attended, x, modulation, weights, keys, values, eps):
    """The half layer in float64, in the words of the paper: no operation of the library."""

    def per_token(at):
        return modulation[:, :, at].repeat_interleave(TOKENS // FRAMES, 1)

    functional = torch.nn.functional
    x = x + per_token(2) * functional.linear(attended.flatten(-2), weights.out, weights.out_bias)
    n = functional.layer_norm(x, x.shape[-1:], weights.norm, weights.norm_bias, eps)
    q = functional.linear(n, weights.cross_q, weights.cross_q_bias)
    q = q * torch.rsqrt(q.square().mean(-1, keepdim=True) + eps) * weights.cross_q_norm
    q = q.view(keys.shape[0], -1, HEADS, HEAD_DIM)
    parts = (part.transpose(1, 2) for part in (q, keys, values))
    a = functional.scaled_dot_product_attention(*parts).transpose(1, 2).reshape(x.shape)
    x = x + functional.linear(a, weights.cross_out, weights.cross_out_bias)
    n = functional.layer_norm(x, x.shape[-1:], eps=eps) * (1 + per_token(4)) + per_token(3)
    hidden = functional.gelu(functional.linear(n, weights.up, weights.up_bias), approximate="tanh")
    return x + per_token(5) * functional.linear(hidden, weights.down, weights.down_bias)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("unroped", [True, False])
def test_queries_are_those_of_the_parts(backend: str, dtype: torch.dtype, unroped: bool) -> None:
    arguments = query_arguments(dtype, unroped)
    names = ("k_pages", "v_pages", "unroped_pages") if unroped else ("k_pages", "v_pages")
    written = {name: arguments[name].clone() for name in names}
    expected = queries_by_parts(*(arguments | written).values())
    assert error(ops.block_queries(**arguments), expected) == 0
    for name, pages in written.items():
        assert torch.equal(arguments[name].nan_to_num(7.0), pages.nan_to_num(7.0)), name


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("groups", [SLOTS, SLOTS * FRAMES])
def test_output_is_that_of_the_parts(backend: str, dtype: torch.dtype, groups: int) -> None:
    arguments = output_arguments(dtype, groups)
    out = ops.block_output(**arguments)
    assert out.dtype == dtype
    by_parts = output_by_parts(**arguments)
    # The kernels norm without PyTorch's help here; a difference of one rounding may turn others.
    rounding = torch.finfo(dtype).eps * by_parts.abs().max().item()
    assert error(out, by_parts) <= (4 * rounding if backend.startswith("native") else 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_output_is_accurate(backend: str, dtype: torch.dtype) -> None:
    arguments = output_arguments(dtype)
    exact = exact_output(**{name: double(value) for name, value in arguments.items()})
    assert_accurate(ops.block_output(**arguments), exact, exact_output(**arguments))


def test_any_number_of_threads_gives_the_same_bits() -> None:
    arguments = output_arguments()
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append(ops.block_output(**arguments))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_no_tokens(backend: str) -> None:
    arguments = output_arguments()
    arguments |= {"attended": torch.empty(SLOTS, 0, HEADS, HEAD_DIM), "x": torch.empty(SLOTS, 0, DIM)}
    assert ops.block_output(**arguments).shape == (SLOTS, 0, DIM)


def test_wrong_arguments_are_named(backend: str) -> None:
    arguments = query_arguments()
    with pytest.raises(UsageError, match=r"rope: expected \[s, t, d // 2, 2\]"):
        ops.block_queries(**arguments | {"rope": rope_table(SLOTS, TOKENS + 1, HEAD_DIM // 2)})
    with pytest.raises(UsageError, match="weight: expected"):
        ops.block_queries(
            **arguments | {"weights": arguments["weights"]._replace(k=torch.randn(DIM, DIM + 1))}
        )
    with pytest.raises(UsageError, match="modulation: expected"):
        ops.block_output(**output_arguments() | {"modulation": torch.randn(SLOTS, FRAMES, 5, DIM)})


def test_a_gradient_is_refused() -> None:
    for run, arguments, name in (
        (ops.block_queries, query_arguments(), "x"),
        (ops.block_output, output_arguments(), "attended"),
    ):
        arguments[name].requires_grad_()
        with pytest.raises(UsageError, match=f"{name}: expected no gradient"):
            run(**arguments)
