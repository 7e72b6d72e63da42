"""Adapters: what they need, how many groups are new, where latents play, what a call costs."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.speculative import (
    ADAPTERS,
    BoundaryImage,
    CleanPrefill,
    Keyframes,
    LatentInput,
    RetainedPrefix,
    UnitCosts,
)
from wavecore.control.speculative import events as ev
from wavecore.errors import UsageError

EACH = [RetainedPrefix(8), CleanPrefill(8), BoundaryImage(8), LatentInput(8), Keyframes(8, group=3)]


def test_yields():
    assert [adapter.playable(24) for adapter in EACH] == [8, 8, 7, 7, 5]
    assert [adapter.playable(0) for adapter in EACH] == [8] * 5, "there is nothing to regenerate at the start"
    assert [adapter.phase for adapter in EACH] == [1, 1, 1, 1, 3]


def test_what_a_branch_needs():
    needs = [adapter.needs for adapter in EACH]
    assert needs == [ev.LATENT | ev.CONTEXT, ev.LATENT, ev.PIXELS, ev.LATENT, ev.LATENT]
    assert [adapter.carries_decoder for adapter in EACH] == [True, True, False, False, False]


@pytest.mark.parametrize("adapter", EACH, ids=lambda adapter: adapter.name)
@given(position=st.integers(0, 100))
def test_every_latent_of_a_call_is_trimmed_or_plays_in_order(adapter, position):
    playback = adapter.playback(position)
    assert len(playback) == adapter.latents
    kept = [place for place in playback if place is not None]
    assert kept == list(range(position, position + adapter.playable(position)))
    assert playback[: adapter.trimmed(position)] == (None,) * adapter.trimmed(position)
    for group in range(adapter.playable(position)):
        assert playback[adapter.source(position, group)] == position + group


def test_cost_of_streaming_and_whole_clip_decoding():
    streaming = UnitCosts(denoise=1.0, decode=0.25, store=0.125)
    cost = RetainedPrefix(4).cost(streaming, 8)
    assert cost.ready == (1.25, 1.5, 1.75, 2.0)
    assert (cost.prepare, cost.denoise, cost.store, cost.finish) == (0, 1, 0.125, 2.125)
    whole = UnitCosts(denoise=1.0, decode=0.25, whole_clip=True)
    assert RetainedPrefix(4).cost(whole, 8).ready == (2.0,) * 4


def test_cost_of_what_comes_before_denoising():
    costs = UnitCosts(denoise=1.0, decode=0.25, prefill=0.5, encode=0.75)
    assert CleanPrefill(4).cost(costs, 8, retained=3).prepare == 1.5
    assert RetainedPrefix(4).cost(costs, 8, retained=3).prepare == 0
    assert BoundaryImage(4).cost(costs, 8).prepare == 0.75
    assert BoundaryImage(4).cost(costs, 0).prepare == 0, "the first call has no boundary image"
    assert LatentInput(4).cost(costs, 8).prepare == 0


def test_trimmed_latents_are_denoised_and_decoded_before_the_first_new_group():
    costs = UnitCosts(denoise=1.0, decode=0.25)
    assert Keyframes(6, group=2).cost(costs, 8).ready == (1.75, 2.0, 2.25, 2.5)
    assert len(Keyframes(6, group=2).cost(costs, 0).ready) == 6


def test_names():
    assert {kind(5).name.replace(" ", "-") for kind in ADAPTERS.values()} == set(ADAPTERS)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RetainedPrefix(0), "latents: expected at least 1, got 0"),
        (lambda: BoundaryImage(1), "latents: expected more than the 1"),
        (lambda: Keyframes(3, group=3), "latents: expected more than the 3"),
        (lambda: Keyframes(3, group=0), "group: expected at least 1, got 0"),
        (lambda: UnitCosts(denoise=float("nan")), "denoise: expected a finite number"),
        (lambda: UnitCosts(denoise=1, decode=-1), "decode: expected a finite number"),
    ],
)
def test_wrong_values(make, message):
    with pytest.raises(UsageError, match=message):
        make()
