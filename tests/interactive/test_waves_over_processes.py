"""Waves over processes: what one device makes under the same decisions, bit for bit."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
from support.cuts import check_random_cuts
from support.decisions import Decisions, decide, same_stream
from support.generators import SIZE
from support.models import tiny_stream_model

from wavecore.interactive.causal import CausalGenerator
from wavecore.pipeline import Pipeline
from wavecore.placement.calls import local_calls
from wavecore.placement.layers import Ring
from wavecore.placement.layers.calls import RingCalls
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_calls import ReplicaCalls
from wavecore.placement.replica_options import ReplicaOptions
from wavecore.rounds.calls import CallRules

pytestmark = pytest.mark.usefixtures("one_thread")

MODES = [(mode, transport) for transport in ("shared", "gloo") for mode in ("paged", "early", "sync")]


@pytest.fixture(scope="module")
def pipe():
    return Pipeline(tiny_stream_model(layers=3))


@pytest.fixture(scope="module")
def nursery(pipe):
    nursery = Nursery(pipe.model.dit)
    yield nursery
    nursery.close()


@pytest.fixture(scope="module")
def ring(pipe):
    with Ring(pipe.model.dit, 2) as ring:
        yield ring


def wave(pipe, place, steps=2, prefill=False, **more):
    parameters = {"order": "wavefront", "history": 3, "store_history": 6, **more}
    rules = CallRules(steps=steps, **parameters)
    return CausalGenerator(pipe.model, rules, pipe.levels(steps), 5, SIZE, 18, prefill=prefill, place=place)


def replicas(pipe, nursery, **options):
    """Where the slots of a wave have processes of their own."""
    options = ReplicaOptions(**{"timeout": 30, **options})
    return lambda stream: ReplicaCalls(pipe.model.dit, stream, options, nursery=nursery)


def check(pipe, seed, place, elsewhere, **more):
    """Draw decisions on one device, slot by slot, and take them again somewhere else."""
    decisions = Decisions(Random(seed))
    slots = partial(local_calls, pipe.model.dit, order="slots", elsewhere=elsewhere)
    expected = decide(wave(pipe, slots, **more), decisions)
    over = wave(pipe, place, **more)
    try:
        assert same_stream(decide(over, Decisions(drawn=decisions.drawn)), expected)
    finally:
        over.close()
    assert expected
    return decisions.drawn.count("cut")


# -- replicas --------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "seed"), [(1, 1), (2, 0), (4, 1)])
def test_replicas_make_what_one_device_makes(pipe, nursery, steps, seed):
    assert check(pipe, seed, replicas(pipe, nursery), True, steps=steps, anchor=seed % 2 == 0)


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "transport"), MODES)
def test_replicas_in_every_mode(pipe, nursery, mode, transport):
    assert check(pipe, 3, replicas(pipe, nursery, mode=mode, transport=transport), True)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["paged", "early"])
def test_replicas_with_one_generation_of_pages(pipe, nursery, mode):
    assert check(pipe, 4, replicas(pipe, nursery, mode=mode, generations=1), True)


def test_replicas_rebuild_keys_and_values_from_clean_latents(pipe, nursery):
    assert check(pipe, 5, replicas(pipe, nursery), True, prefill=True)


def test_replicas_that_are_cut_keep_what_lies_before_and_continue_afresh(pipe, nursery):
    check_random_cuts(Random(0), partial(wave, pipe, replicas(pipe, nursery)))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 30))
def test_many_cuts_over_replicas(pipe, nursery, seed):
    check_random_cuts(Random(seed), partial(wave, pipe, replicas(pipe, nursery)))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("seed", range(40))
def test_replicas_under_many_decisions(pipe, nursery, steps, seed):
    place = replicas(pipe, nursery, mode=("paged", "early")[seed % 2], generations=1 + seed % 3)
    check(pipe, seed, place, True, steps=steps, anchor=seed % 4 < 2, first_alone=seed % 8 < 2)


# -- ring ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("steps", "seed"), [(1, 1), (2, 0), (4, 1)])
def test_a_ring_makes_what_one_device_makes(pipe, ring, steps, seed):
    more = {"anchor": seed % 2 == 0, "first_alone": seed % 2 == 1}
    assert check(pipe, seed, partial(RingCalls, ring), False, steps=steps, **more)


def test_a_ring_makes_calls_one_chunk_after_the_other(pipe, ring):
    check(pipe, 9, partial(RingCalls, ring), False, order="sequential")


def test_a_ring_rebuilds_keys_and_values_from_clean_latents(pipe, ring):
    assert check(pipe, 5, partial(RingCalls, ring), False, prefill=True)


def test_a_ring_that_is_cut_keeps_what_lies_before_and_continues_afresh(pipe, ring):
    check_random_cuts(Random(0), partial(wave, pipe, partial(RingCalls, ring)))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
def test_rings_under_many_decisions(pipe, ranks):
    with Ring(pipe.model.dit, ranks) as ring:
        place = partial(RingCalls, ring)
        for seed in range(30):
            more = {"steps": (1, 2, 4)[seed % 3], "anchor": seed % 4 < 2, "first_alone": seed % 8 < 4}
            check(pipe, seed, place, False, **more)
        for seed in range(1, 20):
            check_random_cuts(Random(seed), partial(wave, pipe, place))
