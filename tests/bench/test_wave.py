"""The benchmark of waves: each of its parts runs."""

import importlib
import os
import sys
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
EVERY = ("latency", "cost", "pair", "wide", "link", "baselines", "plan", "equal")


@pytest.fixture
def wave(monkeypatch):
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("it pins processes to two cores")
    monkeypatch.syspath_prepend(BENCH)
    module = importlib.import_module("wave")
    monkeypatch.setattr(module, "REPEATS", 2)
    yield module
    for name in ("wave", "wave_streams", "machine"):
        sys.modules.pop(name, None)


def test_the_scheduler_is_timed(wave):
    assert set(wave.PARTS) == set(EVERY)
    result = wave.cost(0.05)
    assert result["median_us"] > 0 and (result["layers"], result["edges"]) == (30, 4)


@pytest.mark.slow
def test_predictions_stand_beside_measurements(wave):
    result = wave.plan(0.02)
    assert set(result) == {"1 steps", "4 steps"}
    for row in result.values():
        assert all(name.startswith("wave ") for name in row["plans"])
        assert len(row["predicted"]) == len(row["measured"]) == 2
        assert row["predicted_over_measured"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("part", [part for part in EVERY if part not in ("cost", "plan")])
def test_part(wave, part):
    assert wave.PARTS[part](0.05)
