"""Rounds in virtual time, against numbers worked out by hand and against published measurements."""

import pytest

from wavecore.errors import UsageError
from wavecore.plan import Exchange, LinearCost, simulate
from wavecore.plan.costs import DEVICES, MODELS
from wavecore.rounds import Wavefront

RULES = Wavefront(steps=4)
SDPA = LinearCost(30, 33.7e-3, 15e-3)  # 1.3B at 832x480, K chunks of context: 33.7 + 15 K ms
TAU = 83.8e-6


@pytest.mark.parametrize(
    ("transfer", "barrier", "tick", "layers"),
    [
        (TAU, True, 153.8, (1, 1, 30, 30)),
        (TAU, False, 153.8, (1, 0, 0, 0)),
        (2e-3, True, 158.7, None),
        (2e-3, False, 155.7, (1, 0, 0, 0)),
    ],
)
def test_ticks_and_exposed_layers(transfer, barrier, tick, layers):
    result = simulate(RULES, SDPA, Exchange(transfer=transfer, barrier=barrier))
    assert result.tick * 1e3 == pytest.approx(tick, abs=0.1)
    if layers is not None:
        assert result.exposed_layers == layers


def test_cleaner_stages_lead_by_what_their_contexts_are_shorter():
    result = simulate(RULES, SDPA, Exchange(transfer=0.0))
    starts = {span.track: span.begin for span in result.spans if int(span.label) == 14 - _slot(span.track)}
    lead = [(starts["s0"] - starts[name]) * 1e3 for name in ("s1", "s2", "s3", "store")]
    assert lead == pytest.approx([0, 15, 45, 90], abs=1e-6)


def _slot(track):
    return 4 if track == "store" else int(track[1:])


def test_an_edge_is_exposed_where_the_transfer_takes_longer_than_the_reader_comes_later():
    result = simulate(RULES, SDPA, Exchange(transfer=2e-3))
    assert result.exposed[1, 0] == pytest.approx(2e-3)
    assert all(wait < 1e-9 for edge, wait in result.exposed.items() if edge != (1, 0))


def test_one_generation_of_pages_holds_nobody_up_that_has_less_than_a_round_of_lead():
    ticks = [simulate(RULES, SDPA, Exchange(transfer=TAU, generations=g)).tick for g in (1, 2)]
    assert ticks[0] == pytest.approx(ticks[1])


def test_a_stage_that_leads_by_more_than_its_generations_waits_for_credit():
    """A slow first stage: the store would run ahead for ever, but every chunk comes from it."""
    slow = lambda stage, chunks: LinearCost(4, 1.0 if stage == 0 else 0.01, 0.0)(stage, chunks)  # noqa: E731
    result = simulate(RULES, slow, Exchange(transfer=0.0))
    assert result.tick == pytest.approx(1.0)


# Published ticks in ms (p50): sync, then the exchanges that publish early. Only `sync` is fitted.
PUBLISHED = [
    ("wan-1.3b", "h200-sdpa", 153.4, {"early": [142.1, 140.2], "paged": [139.1]}),
    ("wan-1.3b", "h200", 110.5, {"early": [99.5, 96.4], "paged": [95.4]}),
    ("wan-1.3b", "h200", 91.96, {"paged": [78.88]}),
    ("wan-14b", "h200", 464.27, {"paged": [413.80]}),
]


def calibrated(name, device, sync):
    """Cost and exchange for a model, scaled so that `sync` takes what was measured."""
    from wavecore.plan.costs import forward_cost

    model, device = MODELS[name], DEVICES[device]
    size = (832, 480)
    edge = model.edge_bytes(model.tokens(size))
    cost = forward_cost(model, device, size)
    exchange = {
        mode: Exchange(
            mode=mode,
            transfer=edge / device.link,
            latency=device.latency,
            unpack=2 * edge / device.memory,
            barrier=True,
        )
        for mode in ("sync", "early", "paged")
    }
    return cost.scaled(fit(cost, exchange["sync"], sync / 1e3)), exchange


def fit(cost, exchange, tick):
    """Factor on the cost that gives this tick; in step, the tick is linear in it."""
    once, twice = (simulate(RULES, cost.scaled(factor), exchange).tick for factor in (1, 2))
    return 1 + (tick - once) / (twice - once)


@pytest.mark.parametrize(("name", "device", "sync", "rows"), PUBLISHED)
def test_published_ticks_follow_from_that_of_sync(name, device, sync, rows):
    cost, exchange = calibrated(name, device, sync)
    for mode, measured in rows.items():
        tick = simulate(RULES, cost, exchange[mode]).tick * 1e3
        for value in measured:
            assert tick == pytest.approx(value, rel=0.05), mode


def test_published_frame_rate_of_denoising_follows_from_the_tick():
    """399 latents are 133 chunks, so 137 rounds; frames are counted as four a latent."""
    assert 4 * 399 / (RULES.count(133) * 78.88e-3) == pytest.approx(147.6, rel=0.01)


def test_a_short_stream_is_an_error():
    with pytest.raises(UsageError, match="two rounds of full width"):
        simulate(RULES, SDPA, Exchange(transfer=TAU), chunks=6)
