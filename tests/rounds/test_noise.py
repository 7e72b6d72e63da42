"""Noise levels against diffusers, and noise that does not depend on the order of execution."""

import numpy as np
import pytest

from wavecore.errors import UsageError
from wavecore.rounds import nearest_levels, nearest_sigma, noise, warped_levels


@pytest.mark.parametrize(
    ("steps", "shift", "expected"),
    [
        ((1000, 750, 500, 250), 5, (1000, 937.5, 833.33, 625)),
        ((1000, 800, 600, 400, 200), 5, (1000, 952.38, 882.35, 769.23, 555.56)),
        ((1000, 750, 500, 250), 8, (1000, 960, 888.89, 727.27)),
        ((1000, 800, 600, 400, 200), 8, (1000, 969.70, 923.08, 842.11, 666.67)),
    ],
)
def test_published_warped_steps(steps, shift, expected):
    levels = warped_levels(steps, shift)
    assert [level.timestep for level in levels[:-1]] == pytest.approx(expected, abs=5e-3)
    assert all(level.sigma == pytest.approx(level.timestep / 1000) for level in levels)
    assert levels[-1] == (0, 0)


@pytest.mark.parametrize("shift", [1.0, 3.0, 5.0, 8.0])
def test_sigmas_of_diffusers(shift):
    import diffusers

    table = diffusers.FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift).sigmas
    for index in (0, 1, 250, 500, 750, 999):
        (level, _) = warped_levels([1000 - index], shift)
        assert level.sigma == pytest.approx(float(table[index]), abs=1e-6)


def test_nearest_training_timestep():
    """StreamDiffusionV2's levels at shift 8."""
    levels = nearest_levels((700, 600, 500, 400), 8)
    assert [level.timestep for level in levels] == [700, 600, 500, 400, 0]
    assert [level.sigma for level in levels[:4]] == pytest.approx(
        [0.700232, 0.60019, 0.499719, 0.40026], abs=1e-6
    )
    assert nearest_sigma(0, 8) == pytest.approx(0.007944, abs=1e-6)


@pytest.mark.parametrize("steps", [(), (500, 750), (1000, 0), (1200, 500), (500, 500)])
def test_bad_timesteps(steps):
    with pytest.raises(UsageError, match="timesteps: expected falling numbers"):
        warped_levels(steps, 5)


@pytest.mark.parametrize("shift", [0, -1, float("inf"), float("nan")])
@pytest.mark.parametrize("levels", [warped_levels, nearest_levels])
def test_bad_shift(levels, shift):
    with pytest.raises(UsageError, match="shift: expected a finite number above 0"):
        levels((1000, 500), shift)


def test_noise_depends_on_its_key_only():
    shape = (16, 3, 8, 8)
    first = noise(7, 3, 1, shape)
    for other in [(7, 4, 1), (7, 3, 2), (8, 3, 1), (7, 1, 3)]:
        noise(*other, shape)
    assert np.array_equal(noise(7, 3, 1, shape), first)


def test_noise_of_different_keys_is_independent_and_normal():
    keys = [(seed, chunk, stage) for seed in (-1, 0, 2**63) for chunk in range(8) for stage in range(4)]
    draws = np.stack([noise(*key, (4096,)) for key in keys])
    correlation = np.corrcoef(draws) - np.eye(len(keys))
    assert draws.dtype == np.float32
    assert np.abs(correlation).max() < 6 / np.sqrt(4096)
    assert abs(draws.mean()) < 6 / np.sqrt(draws.size)
    assert abs(draws.std() - 1) < 6 / np.sqrt(2 * draws.size)
