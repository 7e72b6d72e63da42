"""Waves over processes: what one device makes under the same decisions, bit for bit."""

from __future__ import annotations

from functools import partial
from random import Random

import pytest
import torch
from support.decisions import Decisions, decide, same_stream
from support.generators import SIZE

from wavecore.interactive.causal import CausalGenerator
from wavecore.placement.calls import local_calls
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_calls import ReplicaCalls
from wavecore.placement.replica_options import ReplicaOptions
from wavecore.rounds.calls import CallRules

MODES = [(mode, transport) for transport in ("shared", "gloo") for mode in ("paged", "early", "sync")]


@pytest.fixture(scope="module")
def nursery(model):
    nursery = Nursery(model.dit)
    yield nursery
    nursery.close()


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def wave(pipe, place, steps, **more):
    parameters = {"history": 3, "store_history": 6, "anchor": True, **more}
    rules = CallRules(steps=steps, order="wavefront", **parameters)
    return CausalGenerator(pipe.model, rules, pipe.levels(steps), 5, SIZE, 18, place=place)


def check(pipe, nursery, seed, steps, options=None, **more):
    """Draw decisions on one device, slot by slot, and take them again over replicas."""
    dit = pipe.model.dit
    decisions = Decisions(Random(seed))
    alone = wave(pipe, partial(local_calls, dit, order="slots", elsewhere=True), steps, **more)
    expected = decide(alone, decisions)
    options = options or ReplicaOptions(timeout=30)
    over = wave(pipe, lambda stream: ReplicaCalls(dit, stream, options, nursery=nursery), steps, **more)
    try:
        assert same_stream(decide(over, Decisions(drawn=decisions.drawn)), expected)
    finally:
        over.close()
    assert "cut" in decisions.drawn and expected


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("seed", range(2))
def test_replicas_make_what_one_device_makes(pipe, nursery, steps, seed):
    check(pipe, nursery, seed, steps, anchor=seed % 2 == 0)


@pytest.mark.parametrize(("mode", "transport"), MODES)
def test_replicas_in_every_mode(pipe, nursery, mode, transport):
    check(pipe, nursery, 3, 2, ReplicaOptions(mode=mode, transport=transport, timeout=30))


@pytest.mark.parametrize("mode", ["paged", "early"])
def test_replicas_with_one_generation_of_pages(pipe, nursery, mode):
    check(pipe, nursery, 4, 2, ReplicaOptions(mode=mode, generations=1, timeout=30))


@pytest.mark.slow
@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("seed", range(2, 40))
def test_replicas_under_many_decisions(pipe, nursery, steps, seed):
    options = ReplicaOptions(mode=("paged", "early")[seed % 2], generations=1 + seed % 3, timeout=30)
    check(pipe, nursery, seed, steps, options, anchor=seed % 4 < 2, first_alone=seed % 8 < 2)
