from __future__ import annotations

import pytest
import torch
from support.ops import DTYPES, assert_accurate, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops import eager_int8, reference_int8


def arguments(dtype: torch.dtype, slots: int = 2, channels: int = 3, frames: int = 4) -> list[torch.Tensor]:
    latents = [torch.randn(slots, channels, frames, 5, 7, dtype=dtype) for _ in range(3)]
    return [*latents, torch.rand(slots, frames), torch.rand(slots, frames)]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_matches_the_reference(backend: str, dtype: torch.dtype) -> None:
    given = arguments(dtype)
    exact = reference_int8.renoise_step(*(tensor.float() for tensor in given))
    plain = eager_int8.renoise_step(*given)
    for actual, expected, other in zip(ops.renoise_step(*given), exact, plain, strict=True):
        assert_accurate(actual, expected, other)


def test_no_noise_gives_the_estimate_and_all_noise_the_noise(backend: str) -> None:
    x, velocity, noise, sigma, _ = arguments(torch.float32)
    x0, same = ops.renoise_step(x, velocity, noise, sigma, torch.zeros_like(sigma))
    assert torch.equal(same, x0)
    assert error(ops.renoise_step(x, velocity, noise, sigma, torch.ones_like(sigma))[1], noise) <= 1e-6
    # Velocity is epsilon - x0, so what was noised comes back.
    clean, epsilon, level = x, noise, sigma[:, None, :, None, None]
    back, _ = ops.renoise_step((1 - level) * clean + level * epsilon, epsilon - clean, noise, sigma, sigma)
    assert error(back, clean) <= 1e-5


def test_every_layout(backend: str) -> None:
    x, velocity, noise, sigma, then = arguments(torch.float32)
    exact = reference_int8.renoise_step(x, velocity, noise, sigma, then)
    moved = x.permute(0, 2, 1, 3, 4).contiguous().permute(0, 2, 1, 3, 4)
    strided = velocity.mT.contiguous().mT
    for actual, expected in zip(
        ops.renoise_step(moved, strided, noise.repeat(1, 2, 1, 1, 1)[:, ::2].copy_(noise), sigma, then),
        exact,
        strict=True,
    ):
        assert_accurate(actual, expected, expected)


@pytest.mark.parametrize("sizes", [(0, 3, 4), (2, 0, 4), (2, 3, 0)])
def test_empty(backend: str, sizes: tuple[int, int, int]) -> None:
    given = arguments(torch.float32, *sizes)
    assert [part.shape for part in ops.renoise_step(*given)] == [given[0].shape] * 2


def test_a_wrong_argument_is_named(backend: str) -> None:
    x, velocity, noise, sigma, then = arguments(torch.float32)
    with pytest.raises(UsageError, match=r"^sigma: expected \[s, f\] = \[2, 4\], got \[2, 3\]$"):
        ops.renoise_step(x, velocity, noise, sigma[:, 1:], then)
    with pytest.raises(UsageError, match=r"^velocity: expected torch.float32 as x, got torch.float16$"):
        ops.renoise_step(x, velocity.half(), noise, sigma, then)
