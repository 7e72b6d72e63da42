"""Latents between stages."""

import pytest
import torch

from wavecore.errors import WavecoreError
from wavecore.placement import Handoff, renoise
from wavecore.rounds import noise, stream_batch, warped_levels, wavefront

LEVELS = warped_levels((1000, 500), shift=5)


def test_renoise_is_that_of_diffusers():
    import diffusers

    scheduler = diffusers.FlowMatchEulerDiscreteScheduler(shift=5.0)
    x0, epsilon = torch.randn(2, 1, 4, 3, 2, 2)
    timestep = scheduler.timesteps[250:251]
    expected = scheduler.scale_noise(x0, timestep, epsilon)
    sigma = float(scheduler.sigmas[250])
    assert sigma == pytest.approx(warped_levels((750,), 5)[0].sigma)
    assert torch.allclose(renoise(x0, epsilon, sigma), expected, atol=1e-6)


def test_a_chunk_goes_from_noise_through_every_stage_to_the_store():
    handoff = Handoff(LEVELS, seed=3, size=(4, 2, 2))
    first, second, third = list(wavefront(2, 1))
    given = handoff.latents(first)
    assert torch.equal(given[0], torch.from_numpy(noise(3, 0, 0, (4, 3, 2, 2))))
    estimate = torch.randn(4, 3, 2, 2)
    assert handoff.advance(first, {0: estimate}) is None
    expected = renoise(estimate, torch.from_numpy(noise(3, 0, 1, (4, 3, 2, 2))), LEVELS[1].sigma)
    assert torch.equal(handoff.latents(second)[1], expected)
    final = torch.randn(4, 3, 2, 2)
    assert handoff.advance(second, {1: final}) is final
    assert handoff.latents(third)[2] is final
    assert handoff.advance(third, {}) is None


def test_a_chunk_can_start_from_a_latent():
    handoff = Handoff(LEVELS, seed=3, size=(4, 2, 2))
    source = torch.randn(4, 2, 2, 2)
    handoff.enter(0, source, sigma=0.7)
    (first, *_) = stream_batch(2, 1)
    expected = renoise(source, torch.from_numpy(noise(3, 0, 0, (4, 2, 2, 2))), 0.7)
    assert torch.equal(handoff.latents(first)[0], expected)


def test_a_stage_without_the_one_before_is_an_error():
    handoff = Handoff(LEVELS, seed=3, size=(4, 2, 2))
    rounds = list(wavefront(2, 2))
    with pytest.raises(WavecoreError, match="chunk 0 to have passed stage 0"):
        handoff.latents(rounds[1])


def test_rounds_without_a_store_pass_leave_nothing_behind():
    handoff = Handoff(LEVELS, seed=3, size=(4, 2, 2))
    for round in stream_batch(2, 4):
        given = handoff.latents(round)
        handoff.advance(round, given)
    assert not handoff.waiting


def test_dropped_chunks_start_anew():
    handoff = Handoff(LEVELS, seed=3, size=(4, 2, 2))
    rounds = list(wavefront(2, 2))
    handoff.advance(rounds[0], {0: torch.randn(4, 3, 2, 2)})
    handoff.drop_from(0)
    with pytest.raises(WavecoreError):
        handoff.latents(rounds[1])
