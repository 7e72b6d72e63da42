"""Waves that a prompt can cut, in the simulator."""

from __future__ import annotations

import json
from fractions import Fraction

import numpy as np
import pytest

from wavecore.cli import run
from wavecore.control.simulate import IsolatedArrivals, PoissonArrivals, Scenario, WaveCosts, simulate
from wavecore.control.speculative import LatentInput, RetainedPrefix, UnitCosts
from wavecore.control.speculative import events as ev
from wavecore.errors import UsageError

COSTS = WaveCosts(steps=4, chunk_latents=3, round=0.15)


def scenario(**more):
    more = {"costs": COSTS, "cut": True, **more}
    return Scenario(adapter=RetainedPrefix(12), group_seconds=Fraction(1, 4), **more)


def test_a_call_takes_as_many_rounds_as_its_wave():
    cost = COSTS.call(12)
    assert cost.ready == pytest.approx([0.6] * 3 + [0.75] * 3 + [0.9] * 3 + [1.05] * 3)
    assert cost.finish == cost.denoise == pytest.approx(1.2), "the last chunk is stored"
    alone = WaveCosts(steps=2, chunk_latents=2, round=0.1, slot=0.05, decode=0.01, first_alone=True).call(5)
    rounds = [0.15, 0.15, 0.2, 0.2, 0.2, 0.15]  # slots: 1, 1, store and first, ...
    ends = np.cumsum(rounds)
    assert alone.ready[:2] == pytest.approx([ends[1] + 0.01, ends[1] + 0.02])
    assert alone.ready[2:4] == pytest.approx([ends[3] + 0.03, ends[3] + 0.04])
    assert alone.finish == pytest.approx(sum(rounds) + 0.05)


def test_a_wave_that_is_not_cut_makes_updates_wait_for_its_end():
    """E[R] = F²/(2T) for calls of length F."""
    result = simulate(scenario(cut=False), IsolatedArrivals(300, 3.0, 0))
    assert result.seconds("wait").mean() == pytest.approx(1.2**2 / 6, rel=0.02)
    assert result.seconds("generation") == pytest.approx(np.full(300, 0.6))


def test_a_cut_answers_sooner_than_the_end_of_the_call():
    outputs = []
    cut = simulate(scenario(), IsolatedArrivals(300, 3.0, 0), outputs.append)
    whole = simulate(scenario(cut=False), IsolatedArrivals(300, 3.0, 0))
    assert len(cut.records) == len(whole.records) == 300
    assert cut.seconds("response").mean() < 0.95 * whole.seconds("response").mean()
    assert cut.seconds("wait").mean() < 0.2 * whole.seconds("wait").mean()
    generation = cut.seconds("generation")
    assert generation.min() >= 0.6 and generation.max() <= 0.75 + 1e-9, "at most the round under way more"
    assert cut.totals.missed_groups <= 2
    kept = [o.kept for o in outputs if isinstance(o, ev.Launch) and o.kept]
    assert len(kept) > 50, "chunks in flight go on"


def test_every_update_of_a_stream_that_is_cut_all_the_time_is_accounted_for():
    result = simulate(scenario(), PoissonArrivals(400, 2.0, 0))
    totals = result.totals
    assert totals.displayed + totals.superseded == len(result.records) == 400
    for record in result.records:
        if record.outcome == "displayed":
            assert record.wait + record.generation + record.alignment == record.display - record.arrival
    assert totals.missed_groups < 0.005 * totals.played


def test_a_device_a_slot_answers_sooner_than_one_device_at_the_published_times():
    """Wan 1.3B: a pass of 48.7 ms and 15 ms for each further chunk of context; a round of 153.4 ms."""
    one_pass = 0.0487 + 6 * 0.015
    chunk = 5 * one_pass
    sequential = scenario(costs=UnitCosts(denoise=4 * one_pass - chunk / 3, decode=chunk / 3), cut=False)
    wave = scenario(costs=WaveCosts(steps=4, chunk_latents=3, round=0.1534))
    medians = [
        float(np.median(simulate(each, IsolatedArrivals(200, 3.0, 0)).seconds("response")))
        for each in (sequential, wave)
    ]
    assert medians[1] < 0.5 * medians[0]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WaveCosts(steps=0, chunk_latents=3, round=0.1), "steps: expected at least 1"),
        (lambda: WaveCosts(steps=2, chunk_latents=0, round=0.1), "chunk_frames: expected at least 1"),
        (lambda: WaveCosts(steps=2, chunk_latents=3, round=float("nan")), "round: expected a finite"),
        (lambda: WaveCosts(steps=2, chunk_latents=3, round=0.0), "round: expected rounds that take time"),
        (lambda: scenario(spread=0.1), "spread: expected 0 with the costs of a wave"),
        (lambda: scenario(costs=UnitCosts(denoise=1.0)), "cut: expected the costs of a wave"),
        (
            lambda: Scenario(adapter=LatentInput(4), costs=COSTS, group_seconds=0.25),
            "adapter: expected one that makes waves, got latent input",
        ),
    ],
)
def test_wrong_values(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_the_command_simulates_waves(capsys):
    flags = ["--chunk-seconds", "3", "--latents", "12", "--generation-seconds", "0.6", "--arrivals", "60"]
    assert run(["simulate", *flags, "--chunk-latents", "3", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)["controller"]
    assert result["updates"] == 60 and result["generation"]["max"] <= 0.75 + 1e-9
    assert run(["simulate", *flags, "--chunk-latents", "3", "--whole-clip"]) == 2
    assert "--whole-clip: expected none with --chunk-latents" in capsys.readouterr().err
