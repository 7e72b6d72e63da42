"""Which placement is best on which devices."""

import json

import pytest

from wavecore.cli import run
from wavecore.errors import UsageError
from wavecore.plan import DEVICES, MODELS, plans
from wavecore.plan.costs import forward_cost, parse_devices

H200 = DEVICES["h200"]


@pytest.fixture(scope="module")
def on_eight():
    return {plan.name: plan for plan in plans(MODELS["wan-1.3b"], H200, 8)}


def test_bytes_on_the_wire_at_wan_sizes():
    sizes = [MODELS[name].edge_bytes(MODELS[name].tokens((832, 480))) for name in ("wan-1.3b", "wan-14b")]
    assert sizes == [28_753_920, 95_846_400]


def test_cost_of_the_published_attention():
    cost = forward_cost(MODELS["wan-1.3b"], DEVICES["h200-sdpa"], (832, 480))
    assert cost.fixed == pytest.approx(33.7e-3, rel=0.01)
    assert cost.per_chunk == pytest.approx(15e-3, rel=0.01)


def test_published_rates_on_one_device():
    """19.06 and 5.51 frames/s; the first was used to find the time of decoding."""
    for name, rate in (("wan-1.3b", 19.06), ("wan-14b", 5.51)):
        sequential = next(p for p in plans(MODELS[name], H200, 1) if p.name == "sequential")
        assert sequential.fps == pytest.approx(rate, rel=0.05)


def test_published_rate_end_to_end(on_eight):
    """134.8 frames/s at 4+1+3 over 133 chunks, where decoding sets the pace."""
    published = on_eight["wave 4+1+3"]
    assert published.period > published.tick
    assert 12 * 133 / (133 * published.period + 4 * published.tick) == pytest.approx(134.8, rel=0.05)


def test_a_mixture_beats_the_published_topologies_on_eight_devices(on_eight):
    mixed = on_eight["wave 4+1+3 shared 1"]
    five = {plan.name: plan for plan in plans(MODELS["wan-1.3b"], H200, 8, steps=5)}["wave 5+1+2"]
    assert mixed.devices == 8
    assert mixed.fps > 1.05 * max(on_eight["wave 4+1+3"].fps, five.fps)


def test_nobody_is_busier_than_the_period_and_all_of_decoding_is_done(on_eight):
    for plan in on_eight.values():
        assert all(assignment.busy <= plan.period + 1e-9 for assignment in plan.assignments)
        assert sum(assignment.decode for assignment in plan.assignments) == pytest.approx(1)
        assert plan.devices <= 8


def test_measured_units_of_the_decoder_are_not_split(on_eight):
    units = [5.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    measured = next(p for p in plans(MODELS["wan-1.3b"], H200, 8, units=units) if p.name == "wave 4+1+3")
    assert max(a.decode for a in measured.assignments) == pytest.approx(0.5)
    assert measured.period > on_eight["wave 4+1+3"].period


@pytest.mark.parametrize("count", [1, 2, 4])
def test_fewer_devices_than_stages_share_stages(count):
    found = plans(MODELS["wan-1.3b"], H200, count)
    assert found[0].fps >= next(p for p in found if p.name == "sequential").fps
    assert all(plan.devices <= count for plan in found)


@pytest.mark.parametrize(
    ("text", "message"), [("0xh200", "--devices"), ("8xh20", "8xh20"), ("eight", "such as 8xh200")]
)
def test_devices_that_are_not_known(text, message):
    with pytest.raises(UsageError, match=message):
        parse_devices(text)


def test_a_device_that_is_too_small_is_an_error():
    from dataclasses import replace

    with pytest.raises(UsageError, match=r"devices: expected more than 1 of 2 GiB for wan-1\.3b"):
        plans(MODELS["wan-1.3b"], replace(H200, capacity=2 * 2**30), 1)


def test_command(capsys, tmp_path):
    picture = tmp_path / "timeline.png"
    assert run(["plan", "--devices", "6", "--rounds", "wavefront", "--timeline", str(picture)]) == 0
    output = capsys.readouterr().out
    assert "best: wave 4+1+1" in output and "| 7 | 7 | 6 | 5 | 4 | 3 |" in output
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert run(["plan", "--devices", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["best"] in ("sequential", "wave 0123s+0 shared 1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model", "wan-2b"],
        ["--size", "100"],
        ["--size", "100x100"],
        ["--devices", "0"],
        ["--rounds", "round"],
    ],
)
def test_wrong_arguments(arguments, capsys):
    assert run(["plan", *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and arguments[0].lstrip("-") in error
