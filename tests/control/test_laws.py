"""The laws of the specification, in virtual time, and the command that measures them."""

from __future__ import annotations

import json
from fractions import Fraction

import pytest

from wavecore.cli import run
from wavecore.control.simulate import (
    GeometricArrivals,
    PoissonArrivals,
    Scenario,
    laws,
    simulate,
)
from wavecore.control.speculative import ADAPTERS, Keyframes, RetainedPrefix, UnitCosts
from wavecore.errors import UsageError
from wavecore.trace import read_events


@pytest.mark.parametrize("law", laws.LAWS, ids=lambda law: law.__name__)
def test_laws_hold_with_few_arrivals(law):
    measured = list(law(240, 1))
    assert measured and all(m.holds for m in measured), laws.table(m for m in measured if not m.holds)


@pytest.mark.slow
def test_laws_hold():
    measured = laws.measure(2_400, 0)
    assert all(law.holds for law in measured), laws.table(law for law in measured if not law.holds)
    assert len({law.setting for law in measured if law.name.startswith("A = ")}) in (0, 20)
    assert {law.tolerance for law in measured} <= {0.01, 0.02, 1e-6}


def test_a_long_chunk_answers_no_later_than_a_short_one():
    rows = {row["latents"]: row for row in laws.chunk_lengths(300, 0)}
    assert rows[12]["response"] <= 1.3 * rows[3]["response"]
    assert rows[40]["response"] <= 1.3 * rows[3]["response"]
    assert rows[40]["fixed_chunk"] > 5 * rows[40]["response"]


@pytest.mark.parametrize("name", ADAPTERS)
def test_records_add_up_for_every_adapter_under_random_times(name):
    kind = ADAPTERS[name]
    adapter = Keyframes(12, group=3) if kind is Keyframes else kind(12)
    costs = UnitCosts(denoise=0.6, decode=0.01, store=0.05, prefill=0.01, encode=0.05)
    scenario = Scenario(
        adapter=adapter, costs=costs, group_seconds=Fraction(1, 4), spread=0.2, margin=0.05, seed=3
    )
    result = simulate(scenario, PoissonArrivals(150, 0.5, 0))
    shown = [r for r in result.records if r.outcome == "displayed"]
    assert len(shown) > 50
    for record in shown:
        assert record.wait + record.generation + record.alignment == record.display - record.arrival
    totals = result.totals
    assert totals.sampled == totals.playable + totals.overlap
    assert totals.superseded + totals.displayed == 150


def test_an_adaptive_margin_holds_an_underrun_rate():
    costs = UnitCosts(denoise=0.5)
    rates = {}
    for target in (0.002, 0.05):
        scenario = Scenario(
            adapter=RetainedPrefix(4), costs=costs, group_seconds=Fraction(1, 4), spread=0.3, target=target
        )
        totals = simulate(scenario, GeometricArrivals(2_000, 0.0, 0)).totals
        rates[target] = totals.missed_groups / totals.played
    assert rates[0.002] < 0.01 < rates[0.05] < 0.1


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PoissonArrivals(1, 0.0, 0), "rate: expected a finite number above 0"),
        (lambda: PoissonArrivals(1, float("nan"), 0), "rate: expected a finite number above 0"),
        (lambda: GeometricArrivals(1, 1.5, 0), "probability: expected a number within"),
        (lambda: UnitCosts(denoise=float("inf")), "denoise: expected a finite number"),
    ],
)
def test_wrong_values(make, message):
    with pytest.raises(UsageError, match=message):
        make()


# -- the command --------------------------------------------------------------------------

SMALL = [
    "simulate",
    "--arrivals",
    "60",
    "--latents",
    "8",
    "--chunk-seconds",
    "2",
    "--generation-seconds",
    "0.5",
]


def test_the_command_reports_both_streams_and_writes_log_and_plots(tmp_path, capsys):
    folder, log = tmp_path / "plots", tmp_path / "run.jsonl"
    assert run([*SMALL, "--json", "--plots", str(folder), "--events", str(log)]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["controller"]["updates"] == result["fixed_chunk"]["updates"] == 60
    assert result["controller"]["response"]["mean"] < result["fixed_chunk"]["response"]["mean"]
    assert sorted(path.name for path in folder.iterdir()) == ["cost.png", "latency.png", "timeline.png"]
    kinds = {event.kind for event in read_events(log)}
    assert {"run", "launch", "job", "commit", "display", "update", "decide", "ready"} <= kinds


@pytest.mark.parametrize(
    "more",
    [
        ["--process", "poisson", "--rate", "0.5"],
        ["--process", "geometric", "--probability", "0.2", "--fallback", "drop"],
        ["--adapter", "keyframes", "--overlap", "3", "--spread", "0.2", "--margin", "0.05"],
        ["--adapter", "boundary-image", "--encode-seconds", "0.05", "--underrun-rate", "0.01"],
        ["--whole-clip", "--decode-seconds", "0.01"],
    ],
)
def test_the_command_takes_every_kind_of_stream(more, capsys):
    assert run([*SMALL, *more]) == 0
    assert "sampled per played A" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--adapter", "telepathy"], "--adapter: expected one of retained-prefix"),
        (["--process", "sundays"], "--process: expected one of isolated, poisson, geometric"),
        (["--chunk-seconds", "nan"], "--chunk-seconds: expected a finite number"),
        (["--chunk-seconds", "0"], "--chunk-seconds: expected a finite number above 0"),
        (["--generation-seconds", "-1"], "generation-seconds"),
        (["--decode-seconds", "0.6"], "--decode-seconds: expected at most --generation-seconds"),
        (["--fallback", "panic"], "--fallback: expected one of freeze"),
        (["--adapter", "keyframes", "--overlap", "8"], "latents: expected more than the 8"),
    ],
)
def test_wrong_flags_are_named(more, message, capsys):
    assert run([*SMALL, *more]) == 2
    assert message in capsys.readouterr().err
