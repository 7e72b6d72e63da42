"""This machine as a device: plans at the times that were measured here."""

import json

import pytest
from support.models import tiny_stream_model

from wavecore.cli import run
from wavecore.errors import UsageError
from wavecore.plan import plans
from wavecore.plan.costs import decode_seconds, forward_cost, parse_devices
from wavecore.plan.measure import measure
from wavecore.rounds import Wavefront

SIZE = (64, 32)


def test_the_rates_give_back_the_measured_times():
    measured = measure(tiny_stream_model(), SIZE, seconds=0.02)
    cost = forward_cost(measured.model, measured.device, SIZE)
    assert cost.layers == 2 and cost.fixed > 0 and cost.per_chunk > 0
    assert decode_seconds(measured.model, measured.device, SIZE) == pytest.approx(3 * sum(measured.units))
    found = plans(
        measured.model,
        measured.device,
        2,
        steps=1,
        size=SIZE,
        rules=Wavefront(steps=1, history=1, store_history=2, anchor_chunks=0),
        units=measured.units,
    )
    serial = next(plan for plan in found if plan.name == "sequential")
    compute = serial.period - 3 * sum(measured.units)
    assert compute / 2 == pytest.approx(cost.seconds(round((compute / 2 - cost.fixed) / cost.per_chunk)))
    wave = next(plan for plan in found if plan.result is not None)
    assert wave.period < serial.period


def test_command(capsys):
    assert run(["plan", "--model", "sprites", "--devices", "2xthis", "--steps", "1", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert {plan["rounds"] for plan in result["plans"]} == {"wavefront", "sequential", "stream_batch"}
    assert run(["plan", "--model", "sprites", "--devices", "2xh200"]) == 2
    assert "--devices: expected cores of this machine for sprites" in capsys.readouterr().err


def test_a_device_to_be_measured_is_told_apart():
    assert parse_devices("2xthis") == (2, None)
    with pytest.raises(UsageError, match="h200-sdpa, this"):
        parse_devices("2xthat")
