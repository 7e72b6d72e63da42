"""Estimators: running quantiles against NumPy, warm-up, margin, lead."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import QuantileEstimator
from wavecore.errors import UsageError


@given(
    st.lists(st.integers(0, 10**10), min_size=3, max_size=60),
    st.integers(1, 20),
    st.floats(0.01, 1),
)
def test_estimate_is_a_quantile_of_the_latest_measurements(values, window, quantile):
    estimator = QuantileEstimator(1, [0.0], quantile=quantile, window=window, warmup=0)
    for value in values:
        estimator.observe(0, value, bootstrap=False)
    latest = np.sort(values[-window:])
    expected = latest[min(int(quantile * len(latest)), len(latest) - 1)]
    assert estimator.latencies() == [expected]
    assert np.mean(latest <= expected) >= quantile, "enough of them were not longer"


def test_warm_up_takes_the_largest_of_prior_and_measured_with_a_reserve():
    estimator = QuantileEstimator(1, [0.1], warmup=3, warmup_factor=2.0, quantile=0.5)
    assert estimator.latencies() == [SECOND // 5]
    for value, expected in [(50, 200), (150, 300), (60, 60), (70, 70)]:
        estimator.observe(0, value * MILLISECOND, bootstrap=False)
        assert estimator.latencies() == [expected * MILLISECOND]


def test_without_a_prior_the_bootstrap_call_is_the_prior():
    estimator = QuantileEstimator(2, warmup=2, warmup_factor=1.5)
    assert estimator.latencies() is None
    estimator.observe(0, 100, bootstrap=True)
    assert estimator.latencies() is None, "not before every latent has been measured"
    estimator.observe(1, 0, bootstrap=True)
    assert estimator.latencies() == [150, 0]
    estimator.observe(1, 300, bootstrap=False)
    assert estimator.latencies() == [150, 450]


def test_a_prior_goes_before_the_bootstrap_call():
    estimator = QuantileEstimator(1, [1e-6], warmup=0)
    estimator.observe(0, 77, bootstrap=True)
    assert estimator.latencies() == [1000]


def test_the_delay_of_cuts_is_a_quantile_of_what_they_took_longer():
    estimator = QuantileEstimator(1, [1.0], warmup=2, warmup_factor=2.0, quantile=0.5)
    assert estimator.cut_delay() is None
    estimator.observe_cut(2100 * MILLISECOND)
    assert estimator.cut_delay() == 200 * MILLISECOND, "beyond Ĉ = 2 s, with a reserve"
    estimator.observe_cut(1500 * MILLISECOND)
    assert estimator.cut_delay() == 100 * MILLISECOND
    assert estimator.latencies() == [2 * SECOND], "calls that cut no other have their own estimate"
    unknown = QuantileEstimator(1)
    unknown.observe_cut(SECOND)
    assert unknown.cut_delay() is None, "longer than what is not known"


def test_lead_is_what_a_call_needs_and_the_margin_once_more():
    estimator = QuantileEstimator(1, margin=0.02)
    assert estimator.lead(SECOND) == SECOND + 20 * MILLISECOND
    assert QuantileEstimator(1, lead=3.0).lead(SECOND) == 3 * SECOND


@pytest.mark.parametrize("target", [0.001, 0.01, 0.1])
def test_adaptive_margin_settles_where_the_target_share_is_missed(target):
    """Latencies are uniform: the margin that 1 - target of them do not exceed is known."""
    estimator = QuantileEstimator(1, target=target, margin=0.0, step=0.001, margin_limit=10)
    random = np.random.default_rng(0)
    margins = []
    for excess in random.uniform(0, SECOND / 4, 40_000):
        estimator.due(1, int(excess > estimator.margin()))
        margins.append(estimator.margin())
    settled = np.mean(margins[20_000:]) / (SECOND / 4)
    assert settled == pytest.approx(1 - target, abs=0.01)


def test_adaptive_margin_stays_within_its_limits():
    estimator = QuantileEstimator(1, target=0.5, margin=0.0, step=1.0, margin_limit=1.5)
    estimator.due(100, 100)
    assert estimator.margin() == 1.5 * SECOND
    estimator.due(100, 0)
    assert estimator.margin() == 0


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"prior": [float("nan")]}, "prior: expected a finite number"),
        ({"prior": [-1.0]}, "prior: expected a finite number"),
        ({"prior": [1.0, 2.0]}, "prior: expected 1 values, one for each latent, got 2"),
        ({"quantile": 0}, "quantile: expected"),
        ({"quantile": float("nan")}, "quantile: expected"),
        ({"window": 0}, "window: expected at least 1"),
        ({"warmup": -1}, "warmup: expected at least 0"),
        ({"warmup_factor": 0.5}, "warmup_factor: expected"),
        ({"margin": float("inf")}, "margin: expected a finite"),
        ({"target": 1.0}, "target: expected"),
        ({"lead": -0.1}, "lead: expected"),
    ],
)
def test_wrong_values(more, message):
    with pytest.raises(UsageError, match=message):
        QuantileEstimator(1, **more)


def test_a_negative_measurement_is_refused():
    with pytest.raises(UsageError, match="latency: expected 0 or more"):
        QuantileEstimator(1).observe(0, -1, bootstrap=False)
