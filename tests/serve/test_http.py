"""What machines and batch users ask for."""

from __future__ import annotations

import io
import time

import av
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.serving import SyntheticEngine, read_picture, serving, wait_until

from wavecore.client import Client


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


def metrics(server):
    families = text_string_to_metric_families(server.get("/metrics").text)
    return {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}


def finished(server, key):
    end = time.monotonic() + 20
    while (job := server.get(f"/v1/videos/{key}").json())["status"] in ("queued", "in_progress"):
        assert time.monotonic() < end
        time.sleep(0.02)
    return job


def test_the_server_is_not_ready_before_the_model_is():
    from wavecore.serve.app import Server
    from wavecore.serve.settings import ServeSettings

    async def ask(app, path):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.get(path)

    import asyncio

    app = Server(ServeSettings(), SyntheticEngine()).app  # its lifespan has not begun
    assert asyncio.run(ask(app, "/healthz")).status_code == 200
    answer = asyncio.run(ask(app, "/readyz"))
    assert (answer.status_code, answer.json()["status"]) == (503, "loading")


def test_a_model_that_cannot_be_loaded_is_said_so():
    class Broken(SyntheticEngine):
        def load(self):
            raise RuntimeError("no such weights")

    with serving(Broken()) as broken:
        answer = broken.get("/readyz")
        assert (answer.status_code, answer.json()["status"]) == (503, "failed")


def test_ready_and_models(server):
    assert server.get("/readyz").status_code == 200
    assert [m["id"] for m in server.get("/v1/models").json()["data"]] == ["synthetic"]


def test_metrics_count_what_happened(server):
    before = metrics(server)
    with Client(server.url) as client:
        client.start("first")
        source = iter(client)
        for _ in range(9):
            next(source)
        client.update("second")
        for _ in range(16):
            next(source)
        wait_until(lambda: client.records and client.records[-1].transport is not None)
        assert metrics(server)["wavecore_sessions", "connected"] == 1
        client.stop()
        state = client.state
    after = metrics(server)
    assert after["wavecore_displayed_frames_total",] - before["wavecore_displayed_frames_total",] == 25
    assert state.counters["displayed"] <= 25
    for part in ("R", "C", "Q", "transport", "response"):
        assert after["wavecore_latency_seconds_count", part] == 1
    parts = sum(after["wavecore_latency_seconds_sum", part] for part in ("R", "C", "Q", "transport"))
    assert parts == pytest.approx(after["wavecore_latency_seconds_sum", "response"], abs=0.005)
    for name in ("underruns", "superseded_updates", "discarded_latents", "calls"):
        assert (f"wavecore_{name}_total",) in after
    for part in ("A", "w", "rho"):
        assert ("wavecore_cost", part) in after
    assert ("wavecore_queue_age_seconds", "images") in after


def test_a_clip_is_made_and_fetched(server):
    made = httpx.post(server.url + "/v1/videos", json={"prompt": "x", "seconds": "0.5", "size": "64x48"})
    job = made.json()
    assert (made.status_code, job["object"], job["status"]) == (200, "video", "queued")
    assert "prompt" not in job
    done = finished(server, job["id"])
    assert (done["status"], done["progress"]) == ("completed", 100)
    content = server.get(f"/v1/videos/{job['id']}/content")
    assert content.headers["content-type"] == "video/mp4"
    with av.open(io.BytesIO(content.content)) as container:
        shown = [read_picture(f.to_ndarray(format="rgb24"))[1] for f in container.decode(video=0)]
    assert shown == [p % 8 for p in range(20)]
    assert job["id"] in [j["id"] for j in server.get("/v1/videos").json()["data"]]
    assert httpx.delete(server.url + f"/v1/videos/{job['id']}").json()["deleted"]
    assert server.get(f"/v1/videos/{job['id']}").status_code == 404
    assert server.get(f"/v1/videos/{job['id']}/content").status_code == 404


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"prompt": ""}', 400),
        (b'{"prompt": "a\\u0000b"}', 400),
        (b'{"prompt": "x", "seconds": -1}', 400),
        (b'{"prompt": "x", "seconds": 1e9}', 400),
        (b'{"prompt": "x", "size": "big"}', 400),
        (b'{"prompt": "x", "model": "other"}', 400),
        (b'{"prompt": "x", "path": "/etc/passwd"}', 400),
        (b"\xff\xfe", 400),
        (b'{"prompt": "' + b"x" * 70_000 + b'"}', 413),
    ],
)
def test_a_clip_that_cannot_be_made_is_refused_with_a_reason(server, body, status):
    answer = httpx.post(server.url + "/v1/videos", content=body)
    assert answer.status_code == status
    assert "\n" not in answer.json()["error"]["message"]


def test_clips_wait_for_a_slot():
    with serving(slots=1) as small, Client(small.url) as client:
        client.start("first")
        key = httpx.post(small.url + "/v1/videos", json={"prompt": "x", "seconds": 0.2}).json()["id"]
        time.sleep(0.5)
        assert small.get(f"/v1/videos/{key}").json()["status"] == "queued"
        client.stop()
        assert finished(small, key)["status"] == "completed"


def test_the_page_and_nothing_else_is_served(server):
    page = server.get("/")
    assert page.status_code == 200 and "<title>wavecore</title>" in page.text
    policy = page.headers["content-security-policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "*" not in policy
    assert "access-control-allow-origin" not in page.headers
    assert server.get("/app.js").headers["content-type"].startswith("text/javascript")
    again = server.get("/app.js", headers={"if-none-match": server.get("/app.js").headers["etag"]})
    assert again.status_code == 304
    for path in ("/package.json", "/..%2fapp.py", "/%2e%2e/app.py", "/nothing", "/v1/recordings/..%2f..%2fx"):
        assert server.get(path).status_code == 404


def test_the_page_needs_no_other_host(server):
    import re

    for name in server.server._page:
        text = server.get(f"/{name}").text
        links = re.findall(r"https?://[^\s\"'<>)]+", text)
        allowed = ("http://www.w3.org/2000/svg", "https://github.com/msgpack")
        assert [link for link in links if not link.startswith(allowed)] == []


def test_prompts_are_not_logged(server, caplog, capfd):
    with Client(server.url) as client:
        client.start("a very private prompt")
        client.update("another private prompt")
        next(iter(client))
        client.stop()
    out, err = capfd.readouterr()
    assert "private" not in caplog.text + out + err
