"""What a server refuses, and how it says so: messages, starts, rates, tokens, origins."""

from __future__ import annotations

import random
import socket
import time

import msgspec
import pytest
from support.serving import SyntheticEngine, frames, serving, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from wavecore.client import Client, ServerError
from wavecore.errors import UsageError, WavecoreError
from wavecore.serve import protocol
from wavecore.serve.admission import Cost

encode = msgspec.msgpack.encode


@pytest.mark.parametrize("position", [10_000, 2**52])
def test_there_is_no_seek_beyond_what_is_predicted(client, position):
    client.start("first")
    frames(client, 2)
    with pytest.raises(ServerError) as caught:
        client.seek(position)
    assert caught.value.code == "range"


def junk(rng):
    """One malformed, oversized, wrong-typed or odd message, and whether it has an id of its own."""
    odd = ["\0", "", "   ", "🟥🟦" * 3, "שלום‮abc", "a\0b", "\u202e", "x" * 4_001, "𝕏" * 100, "\n\t"]
    kind = rng.choice(
        ["start", "attach", "update", "pause", "resume", "seek", "stop", "ping", "dance", "", 7]
    )
    value = rng.choice([None, True, -1, 1.5, "x", [], {}, 2**60, b"\0\xff", float("inf"), rng.choice(odd)])
    return rng.choice(
        [
            lambda: rng.randbytes(rng.randrange(0, 40)),
            lambda: bytes([0xC1]) * rng.randrange(1, 100),
            lambda: encode({"type": kind, "id": value}),
            lambda: encode({"type": kind, "id": 1, "extra": value}),
            lambda: encode({"type": "update", "id": 1, "prompt": rng.choice(["\0", "", " ", "a\0b"])}),
            lambda: encode({"type": "update", "id": 1, "prompt": value, "transition": value}),
            lambda: encode({"type": "update", "id": 1, "prompt": "x" * rng.choice([4_001, 70_000])}),
            lambda: encode({"type": "seek", "id": 1, "position": value}),
            lambda: encode({"type": "image", "data": rng.choice([b"", b"no image", b"\xff\xd8\xff", value])}),
            lambda: encode({"type": "ack", "received": value}),
            lambda: bytes(3 << 20),
            lambda: "text",
            lambda: encode({"type": "start", "id": 1, "protocol": 1, "prompt": "a second start"}),
        ]
    )()


@pytest.mark.parametrize("address", ["127.0.0.1:{port}", "127.0.0.1:99999", "no such host"])
def test_a_server_that_is_not_there_is_named(address):
    with socket.socket() as taken:  # nobody listens there
        taken.bind(("127.0.0.1", 0))
        url = "http://" + address.format(port=taken.getsockname()[1])
        with pytest.raises(WavecoreError, match=f"{url}: cannot connect: "):
            Client(url)


@pytest.mark.parametrize("options", [{"seed": 2**70}, {"prompt": "\ud800"}])
def test_what_no_message_can_hold_is_refused(client, options):
    with pytest.raises(UsageError, match="start: cannot be sent: "):
        client.start(**{"prompt": "a", **options})


def test_five_hundred_bad_messages_have_one_error_each(server, caplog):
    rng = random.Random(5)
    decoder = msgspec.msgpack.Decoder(protocol.ServerMessage)
    with connect(server.url.replace("http", "ws") + "/v1/stream", compression=None, max_size=None) as socket:
        socket.send(encode({"type": "start", "id": 0, "protocol": 1, "prompt": "first"}))
        errors = replies = sent = 0
        while sent < 500:
            message = junk(rng)
            # A few of them are valid by chance, and have their own reply.
            socket.send(message)
            sent += 1
            while True:
                answer = decoder.decode(socket.recv(timeout=10))
                if isinstance(answer, protocol.Error):
                    errors += 1
                    assert "\n" not in answer.message and "Traceback" not in answer.message
                elif not isinstance(answer, protocol.Reply) or isinstance(answer, protocol.Started):
                    continue
                replies += 1
                break
            time.sleep(0.006)  # below the rate limit
        assert replies == 500
        assert errors > 450
        socket.send(encode({"type": "ping", "id": 9}))
        while not isinstance(decoder.decode(socket.recv(timeout=10)), protocol.Pong):
            pass
        socket.send(encode({"type": "stop", "id": 10}))
    assert not [r for r in caplog.records if r.levelname == "ERROR"]


def test_requests_beyond_the_rate_are_refused_one_by_one(server):
    decoder = msgspec.msgpack.Decoder(protocol.ServerMessage)
    with connect(server.url.replace("http", "ws") + "/v1/stream", compression=None) as socket:
        for number in range(400):
            socket.send(encode({"type": "ping", "id": number}))
        answers = [decoder.decode(socket.recv(timeout=10)) for _ in range(400)]
    assert sorted(a.id for a in answers) == list(range(400))
    refused = [a for a in answers if isinstance(a, protocol.Error)]
    assert refused and {a.code for a in refused} == {"rate"}


def test_a_message_beyond_every_limit_closes_the_connection(server):
    url = server.url.replace("http", "ws") + "/v1/stream"
    with connect(url, compression=None) as socket, pytest.raises(ConnectionClosed) as caught:
        socket.send(bytes(5 << 20))
        socket.recv(timeout=10)
    assert caught.value.rcvd is None or caught.value.rcvd.code == 1009  # none where bytes were unread
    with Client(server.url) as client:
        assert client.now() > 0


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"prompt": ""}, "invalid"),
        ({"prompt": "x", "protocol": 2}, "protocol"),
        ({"prompt": "x", "steps": 0}, "invalid"),
        ({"prompt": "x", "codec": "av1"}, "invalid"),
    ],
)
def test_a_start_that_cannot_be_followed_says_why(server, options, code):
    decoder = msgspec.msgpack.Decoder(protocol.ServerMessage)
    with connect(server.url.replace("http", "ws") + "/v1/stream", compression=None) as socket:
        socket.send(encode({"type": "start", "id": 3, "protocol": 1, **options}))
        answer = decoder.decode(socket.recv(timeout=10))
    assert isinstance(answer, protocol.Error)
    assert (answer.code, answer.id) == (code, 3)
    wait_until(lambda: server.server.sessions.active == 0)


def test_verbs_before_start_are_refused(client):
    for message in (protocol.Pause(id=90), protocol.Update(id=91, prompt="x"), protocol.Stop(id=92)):
        with pytest.raises(ServerError) as caught:
            client.request(message)
        assert caught.value.code == "state"


# -- images --------------------------------------------------------------------------------------


def test_a_session_too_many_is_refused_with_a_time(server):
    with (
        serving(SyntheticEngine(cost=Cost(0.1, 0.4, 0.1)), latency_objective=1.0) as small,
        Client(small.url) as one,
        Client(small.url) as two,
        Client(small.url) as three,
    ):
        one.start("first")
        two.start("first")
        with pytest.raises(ServerError) as caught:
            three.start("first")
        assert (caught.value.code, caught.value.retry_after > 0) == ("busy", True)
        wait_until(lambda: three.close_code == 1013)
        one.stop()
        with Client(small.url) as four:
            four.start("first")
            assert len(frames(four, 5)) == 5
        assert "wavecore_refused_sessions_total 1.0" in small.get("/metrics").text


def test_a_token_is_asked_for_where_there_is_one(server):
    with serving(token="secret") as guarded:
        for token in (None, "wrong"):
            with Client(guarded.url, token) as client:
                with pytest.raises(ServerError) as caught:
                    client.start("first")
                assert caught.value.code == "unauthorized"
                wait_until(lambda client=client: client.close_code == 1008)
        with Client(guarded.url, "secret") as client:
            client.start("first")
            assert frames(client, 1)
        assert guarded.get("/v1/models").status_code == 401
        assert guarded.get("/metrics").status_code == 401
        assert guarded.get("/v1/models", headers={"authorization": "Bearer secret"}).status_code == 200
        assert guarded.get("/healthz").status_code == 200


def test_pages_of_other_origins_are_refused(server):
    url = server.url.replace("http", "ws") + "/v1/stream"
    with pytest.raises(InvalidStatus) as caught, connect(url, origin="https://evil.example"):
        pass
    assert caught.value.response.status_code == 403
    assert server.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
    assert server.get("/v1/models", headers={"origin": server.url}).status_code == 200


def test_other_names_than_its_own_are_refused(server):
    assert server.get("/", headers={"host": "evil.example"}).status_code == 421
