"""Waves that are cut: what lies before stays bit for bit, what follows is a fresh continuation."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import torch
from support.cuts import check_random_cuts
from support.generators import NEW, OLD, SIZE, causal, joint, latents, make, poison, same

from wavecore.control.speculative import LatentInput
from wavecore.control.speculative.events import PIXELS
from wavecore.interactive.causal import CausalGenerator
from wavecore.interactive.predictions import NOTHING_YET
from wavecore.rounds.calls import CallRules


def wave(pipe, steps=2, first_alone=False):
    """Slots run one by one, so that what else is in a round changes no bit."""
    rules = CallRules(steps=steps, order="wavefront", history=3, store_history=6, first_alone=first_alone)
    generator = CausalGenerator(pipe.model, rules, pipe.levels(steps), 5, SIZE, 18)
    generator.placement.placement.order = "slots"
    poison(generator)
    return generator


def run_wave(generator, latents, cut=None, prompt=NEW):
    """Rounds of a call of `latents`; at `cut` = (round, position) the rest is replaced by 9 others."""
    rounds = 0
    for made in generator.call(0, latents, 0, OLD):
        if made is NOTHING_YET:
            rounds += 1
            if cut is not None and rounds == cut[0]:
                assert generator.splice(cut[1], 9, prompt)
    return rounds


CUTS = [(1, 3), (2, 3), (2, 6), (3, 3), (4, 6), (4, 5), (5, 9), (4, 3), (6, 5), (6, 6), (7, 8)]


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize(("round", "position"), CUTS)
def test_a_cut_wave_keeps_what_lies_before_and_continues_as_if_nothing_else_had_been(
    pipe, round, position, first_alone
):
    plain, cut, fresh = (wave(pipe, first_alone=first_alone) for _ in range(3))
    run_wave(plain, 15)
    run_wave(cut, 15, (round, position))
    before = latents(plain, 0, position)
    assert same(latents(cut, 0, position), before), "the run with the update equals the one without it"
    assert sorted(latents(cut)) == list(range(position + 9))
    entered = -(-position // 3) - 1 + first_alone * (position > 3)  # the last chunk before the cut
    through = entered + 3  # rounds after which it is stored
    if round < through and position % 3 == 0:
        run_wave(fresh, position, (round, position))  # nothing was ever behind the prefix
        assert same(latents(fresh), latents(cut))
    if round >= through:
        make(fresh, 0, 15, OLD)
        make(fresh, position, 9, NEW)  # a call of its own behind the same prefix
        assert same(latents(fresh), latents(cut))
    assert not torch.equal(latents(plain)[position], latents(cut)[position])
    assert all(torch.isfinite(latent).all() for latent in latents(cut).values())


@pytest.mark.parametrize("seed", range(6))
def test_waves_that_are_cut_at_random(pipe, seed):
    check_random_cuts(Random(seed), partial(wave, pipe))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6, 100))
def test_many_waves_that_are_cut_at_random(pipe, seed):
    check_random_cuts(Random(seed), partial(wave, pipe))


@pytest.mark.parametrize("first_alone", [False, True])
@pytest.mark.parametrize("steps", [2, 4])
def test_the_first_new_chunk_comes_after_as_many_rounds_as_there_are_steps(pipe, steps, first_alone):
    generator = wave(pipe, steps, first_alone)
    rounds, spliced, came = 0, None, None
    after = 3 + first_alone * (steps - 1)  # the third chunk has entered
    for made in generator.call(0, 18, 0, OLD):
        if made is NOTHING_YET:
            rounds += 1
            if rounds == after:
                generator.splice(9, 9, NEW)
                spliced = rounds
        elif came is None and made.position == 9 and made.parts & PIXELS:
            came = rounds + 1
    assert came - spliced == steps


def test_calls_of_one_piece_cannot_be_cut(pipe, joint_pipe):
    for generator in (causal(pipe), joint(joint_pipe, LatentInput(6))):
        call = generator.call(0, 6, 0, OLD)
        next(call)
        assert not generator.splice(3, 3, NEW)
