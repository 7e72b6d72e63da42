"""The application on a local Ray: sessions spread over replicas, and find their own one again."""

from __future__ import annotations

import itertools
import os
import re
import time
from pathlib import Path

import httpx
import pytest
from support.serving import wait_until

from wavecore.client import Client
from wavecore.serve.settings import ServeSettings
from wavecore.serve.workers import new_key, worker_of

TESTS = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("path", "query", "worker"),
    [
        ("/v1/stream", "worker=one", "one"),
        ("/v1/stream", "", None),
        ("/v1/recordings/one.secret", "", "one"),
        ("/v1/videos/two.secret/content", "", "two"),
        ("/v1/videos", "", None),
        ("/v1/videos/nonsense", "", None),
        ("/metrics", "x=1&worker=a%2Fb", "a/b"),
        ("/", "worker=", None),
    ],
)
def test_a_request_says_which_server_it_is_for(path, query, worker):
    assert worker_of(path, query) == worker


def test_keys_begin_with_the_server_and_differ():
    keys = {new_key("one") for _ in range(100)}
    assert len(keys) == 100
    assert {worker_of(f"/v1/recordings/{key}") for key in keys} == {"one"}


@pytest.fixture(scope="module")
def url():
    """Address of two replicas with coloured pictures for a model."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray = pytest.importorskip("ray", reason="ray is not installed (pip install 'wavecore[ray]')")
    from ray import serve

    from wavecore.serve.cluster import deployment
    from wavecore.serve.run import bind

    def build(settings):
        from support.serving import SyntheticEngine

        from wavecore.serve.app import Server

        return Server(settings, SyntheticEngine(fps=16.0))

    settings = ServeSettings(ray=True, replicas=2, slots=4, port=0)
    with bind(settings) as listener:
        port = listener.getsockname()[1]
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": str(TESTS)}},
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        serve.run(deployment(settings, build), name="wavecore")
        address = f"http://127.0.0.1:{port}"
        wait_until(lambda: httpx.get(f"{address}/readyz").status_code == 200, 60)
        yield address
    finally:
        serve.shutdown()
        ray.shutdown()


def sessions(url, worker):
    text = httpx.get(f"{url}/metrics", params={"worker": worker}).text
    found = re.search(r'wavecore_sessions\{state="connected"\} ([0-9.]+)', text)
    return float(found[1])


@pytest.mark.slow
def test_sessions_spread_and_come_back_to_their_own_replica(url):
    clients = [Client(url, decode=False) for _ in range(4)]
    tokens = []
    for client in clients:
        tokens.append(client.start("first").session)
        assert len(list(itertools.islice(client, 5))) == 5
        client.update("second")
        time.sleep(0.5)  # until Ray has counted the request
    workers = [token.partition(".")[0] for token in tokens]
    assert len(set(workers)) == 2
    for worker in set(workers):
        assert sessions(url, worker) == workers.count(worker)
    for client in clients:
        client.close()
    for token, worker in zip(tokens, workers, strict=True):
        wait_until(lambda worker=worker: sessions(url, worker) == 0, 10)
        with Client(url, decode=False, session=token) as again:
            started = again.attach(token)
            assert len(list(itertools.islice(again, 5))) == 5
            assert again.state.version == 1
            again.stop()
        content = httpx.get(url + started.recording)
        assert content.status_code == 200
        assert content.content[4:8] == b"ftyp"
