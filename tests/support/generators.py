"""Generators of small models, and calls made by hand."""

from __future__ import annotations

import torch

from wavecore.interactive.causal import CausalGenerator
from wavecore.interactive.joint import JointGenerator
from wavecore.interactive.predictions import NOTHING_YET
from wavecore.rounds.calls import CallRules

OLD, NEW = "a red ball rolling left over grass", "a blue star flying up"
SIZE = (64, 32)
ORDERS = ("sequential", "wavefront", "first alone")


def causal(pipe, order="sequential", prefill=False, anchor=False, **more):
    rules = CallRules(
        steps=2,
        order="sequential" if order == "sequential" else "wavefront",
        history=3,
        store_history=6,
        anchor=anchor,
        first_alone=order == "first alone",
    )
    generator = CausalGenerator(pipe.model, rules, pipe.levels(2), 5, SIZE, 9, prefill=prefill, **more)
    poison(generator)
    return generator


def poison(generator):
    """A free page holds NaN, so that a read of what was invalidated shows."""
    pool = cache_of(generator).pool
    for tensor in (*pool.k_pages, *pool.v_pages):
        tensor.fill_(torch.nan)
    pool.free_list._on_free = pool._poison


def cache_of(generator):
    """Keys and values of a generator whose rounds run here."""
    return generator.placement.placement.cache


def joint(pipe, adapter, **more):
    return JointGenerator(pipe.model, adapter, pipe.levels(2), 5, SIZE, **more)


def make(generator, position, groups, prompt, trimmed=0, stop=None):
    """Cut, call, and return what was reported."""
    generator.discard(generator.cut(position))
    made = generator.call(position, groups, trimmed, prompt)
    reports = []
    for report in made:
        if report is NOTHING_YET:
            continue
        reports.append(report)
        if len(reports) == stop:
            made.close()
            break
    return reports


def latents(generator, first=0, end=None):
    positions = [p for p in generator.predictions if p >= first and (end is None or p < end)]
    return {p: generator.predictions[p].latent for p in positions}


def same(a, b):
    return a.keys() == b.keys() and all(torch.equal(a[p], b[p]) for p in a)
