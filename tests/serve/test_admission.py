"""Who is let in, and how much they may send."""

from __future__ import annotations

import pytest

from wavecore.serve.admission import Admission, Cost
from wavecore.serve.limits import Gate, TokenBucket, is_loopback

COST = Cost(response=0.1, load=0.2, group=0.25)


def test_response_grows_with_the_load_of_the_others():
    admission = Admission(COST, 1.0, 100)
    assert admission.response(1) == pytest.approx(0.35)
    assert admission.response(3) == pytest.approx(0.1 / 0.6 + 0.25)
    assert admission.response(5) == float("inf"), "together more than the worker has"


@pytest.mark.parametrize(("objective", "sessions"), [(1.0, 4), (0.45, 3), (0.38, 2), (0.1, 1)])
def test_sessions_are_admitted_while_the_objective_holds(objective, sessions):
    admission = Admission(COST, objective, 100)
    admitted = 0
    while admission.refusal(admitted) is None:
        admitted += 1
    assert admitted == sessions


def test_slots_bound_the_sessions_however_cheap():
    admission = Admission(Cost(0.001, 0.0, 0.01), 1.0, 2)
    assert admission.refusal(1) is None
    assert "2 slots" in admission.refusal(2)


def test_a_bucket_allows_a_burst_and_then_its_rate():
    now = [0.0]
    bucket = TokenBucket(10, 3, lambda: now[0])
    assert [bucket.take() for _ in range(4)] == [True, True, True, False]
    now[0] = 0.1
    assert [bucket.take() for _ in range(2)] == [True, False]
    now[0] = 1e6
    assert sum(bucket.take() for _ in range(10)) == 3


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("::1", True), ("0.0.0.0", False),
     ("10.0.0.1", False), ("example.org", False), ("::", False)],
)  # fmt: skip
def test_loopback(host, local):
    assert is_loopback(host) is local


def test_a_local_server_answers_to_local_names_only():
    gate = Gate("127.0.0.1", None, None)
    for header in ("127.0.0.1:7860", "localhost", "[::1]:7860"):
        assert gate.knows_host(header)
    for header in (None, "", "evil.example", "evil.example:7860", "127.0.0.1.evil.example", "[::1"):
        assert not gate.knows_host(header)
    assert Gate("0.0.0.0", "t", None).knows_host("anything.example")


def test_pages_of_other_origins_are_refused():
    gate = Gate("127.0.0.1", None, "https://page.example")
    host = "127.0.0.1:7860"
    for origin in (None, "http://127.0.0.1:7860", "https://page.example"):
        assert gate.knows_origin(origin, host)
    for origin in ("null", "", "http://127.0.0.1:1", "https://evil.example", "http://[", "file://"):
        assert not gate.knows_origin(origin, host)


def test_tokens_are_compared_whole():
    gate = Gate("0.0.0.0", "secret", None)
    assert gate.knows_token("secret")
    for token in (None, "", "secre", "secret ", "sécret"):
        assert not gate.knows_token(token)
    assert Gate("127.0.0.1", None, None).knows_token(None)
