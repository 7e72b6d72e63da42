"""Sessions over a real connection, on a model of coloured pictures."""

from __future__ import annotations

import io
import itertools
import random
import socket
import time

import av
import msgspec
import pytest
from PIL import Image
from support.serving import SIZE, SyntheticEngine, picture, read_picture, serving, wait_until
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import connect

from wavecore.client import Client, ServerError
from wavecore.errors import UsageError, WavecoreError
from wavecore.serve import protocol
from wavecore.serve.admission import Cost

encode = msgspec.msgpack.encode


@pytest.fixture(scope="module")
def server():
    with serving() as running:
        yield running


@pytest.fixture
def client(server):
    with Client(server.url) as connected:
        yield connected
        if connected.started is not None and connected.close_code is None:
            connected.stop()


def frames(client, count):
    return list(itertools.islice(client, count))


def test_frames_show_their_position_and_version(client):
    client.start("first")
    taken = frames(client, 9)
    client.update("second")
    taken += frames(client, 24)
    seen = [(f.version % 8, f.position % 8) for f in taken]
    assert [read_picture(f.image) for f in taken] == seen
    assert [f.header.number for f in taken] == list(range(33)), "none missing, none twice"
    assert {f.version for f in taken} == {0, 1}
    assert all(f.header.key == (f.header.frame == 0) for f in taken)
    assert all(f.position < f.header.commit[0] for f in taken), "only what is committed is sent"


def test_a_record_has_every_part_up_to_the_viewer(client):
    client.start("first")
    frames(client, 5)
    update = client.update("second")
    frames(client, 16)
    wait_until(lambda: client.records and client.records[-1].transport is not None)
    [record] = client.records
    assert (record.update, record.outcome, record.version) == (update, "displayed", 1)
    parts = record.wait + record.generation + record.alignment + record.transport
    assert parts == pytest.approx(record.shown - record.arrival, abs=0.005)
    assert record.transport >= 0


def test_pause_stands_still_and_resume_goes_on(client):
    client.start("first")
    frames(client, 5)
    client.pause()
    wait_until(lambda: client.state.paused)
    time.sleep(0.3)
    cursor = client.state.cursor
    time.sleep(0.3)
    assert client.state.cursor == cursor
    client.resume()
    taken = frames(client, 12)
    positions = sorted({f.position for f in taken})
    assert positions == list(range(positions[0], positions[-1] + 1))


def test_seek_plays_the_past_again_and_then_goes_on(client):
    client.start("first")
    taken = frames(client, 25)
    client.seek(2)
    taken += frames(client, 60)
    again = [f for f in taken if f.header.replay]
    assert again[0].position == 2
    assert all(read_picture(f.image) == (0, f.position % 8) for f in again)
    live = [f.position for f in taken if not f.header.replay]
    assert live == sorted(live)
    assert set(live) == set(range(live[-1] + 1)), "nothing is lost behind a replay"


def test_seek_forward_leaves_positions_out(client):
    client.start("first")
    frames(client, 5)
    client.pause()
    time.sleep(0.1)
    wait_until(lambda: client.state.commit[2] > client.state.cursor)
    target = client.state.commit[2]
    client.seek(target)
    client.resume()
    taken = frames(client, 12)
    assert taken[-1].position >= target


@pytest.mark.parametrize("position", [10_000, 2**52])
def test_there_is_no_seek_beyond_what_is_predicted(client, position):
    client.start("first")
    frames(client, 2)
    with pytest.raises(ServerError) as caught:
        client.seek(position)
    assert caught.value.code == "range"


def test_stop_ends_the_session_with_its_recording(client, server):
    started = client.start("first")
    frames(client, 21)
    client.stop()
    assert (client.ended, client.close_code) == ("stopped", 1000) or wait_until(
        lambda: client.close_code == 1000
    ) is None
    content = server.get(started.recording)
    with av.open(io.BytesIO(content.content)) as container:
        shown = [read_picture(f.to_ndarray(format="rgb24"))[1] for f in container.decode(video=0)]
    assert shown[:21] == [0] + [p for p in range(1, 6) for _ in range(4)]


def test_a_session_that_is_over_can_be_stopped_again_and_takes_no_other_verb(client):
    client.start("first")
    for frame in client:
        if frame.position >= 2:  # a position has four frames, so this comes again
            client.stop()
    assert client.ended is not None and client.close_code == 1000
    with pytest.raises(WavecoreError, match=r"connection closed \(1000\)"):
        client.update("second")


def test_jpeg_is_an_alternative(server):
    with Client(server.url) as client:
        started = client.start("first", codec="jpeg")
        assert started.decoder == "image/jpeg"
        assert [read_picture(f.image) for f in frames(client, 9)] == [
            (0, p) for p in (0, 1, 1, 1, 1, 2, 2, 2, 2)
        ]
        client.stop()


def test_clients_never_see_each_others_frames(server):
    with Client(server.url) as one, Client(server.url) as other:
        one.start("first", size=(64, 48))
        other.start("first", size=(96, 48))
        other.update("second")
        sizes = {f.image.shape for f in frames(one, 30)}
        taken = frames(other, 30)
        assert sizes == {(48, 64, 3)}
        assert {f.image.shape for f in taken} == {(48, 96, 3)}
        assert one.state.version == 0 and taken[-1].version == 1
        with pytest.raises(ServerError) as caught, Client(server.url) as third:
            third.attach(one.started.session)
        assert caught.value.code == "state", "it has a viewer"
        one.stop()
        other.stop()


def test_a_lost_connection_frees_the_slot_and_is_taken_up_where_it_was(server):
    client = Client(server.url)
    started = client.start("first")
    taken = frames(client, 18)
    began = time.monotonic()
    client.close()
    wait_until(lambda: server.server.sessions.active == 0, 2)
    assert time.monotonic() - began < 2
    time.sleep(0.3)
    with Client(server.url) as again:
        resumed = again.attach(started.session)
        assert resumed.position >= taken[-1].position
        first = next(iter(again))
        assert first.position == resumed.position, "the next that was not committed"
        assert first.position <= taken[-1].position + 3, "it stood still meanwhile"
        again.stop()
    with pytest.raises(ServerError) as caught, Client(server.url) as late:
        late.attach(started.session)
    assert caught.value.code == "unknown_session"


# -- requests that come to nothing -------------------------------------------------------------


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


def test_a_viewer_tells_a_lost_connection_from_the_end_of_a_stream(server):
    with Client(server.url) as client:
        client.start("first")
        assert frames(client, 5)
        client._socket.socket.shutdown(socket.SHUT_RDWR)
        for _ in range(2):  # neither ends as if all had come, nor waits for ever
            with pytest.raises(WavecoreError, match="connection lost"):
                list(client)
    with Client(server.url) as client:
        client.start("first")
        client.stop()
        list(client)
        assert (list(client), client.ended) == ([], "stopped")
    client = Client(server.url)
    client.start("first")
    client.close()
    list(client)
    assert list(client) == []


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


def test_prompts_of_every_script_are_taken(client):
    client.start("🟥 שלום ‮ مرحبا 你好")
    assert client.update("𝕏\u202e🟦") > 0
    with pytest.raises(ServerError) as caught:
        client.update("a\0b")
    assert (caught.value.code, "NUL" in str(caught.value)) == ("invalid", True)


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


def jpeg(image):
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=95)
    return file.getvalue()


def test_images_go_in_and_frames_come_out(client):
    client.start("style", source="images")
    shown = []
    source = iter(client)
    for number in range(5):
        client.send_image(jpeg(picture(number, 0, 0, SIZE)))
        if number == 0 or number == 4:
            shown.append(read_picture(next(source).image)[0])
    assert shown == [0, 1], "the first group has one frame, the next four"


def test_a_session_without_images_refuses_them(client):
    client.start("first")
    client.send_image(jpeg(picture(0, 0, 0, SIZE)))
    wait_until(lambda: client.errors)
    assert client.errors[0].code == "unsupported"


# -- who may ------------------------------------------------------------------------------------


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


def test_idle_sessions_and_old_ones_end():
    with (
        serving(idle_seconds=0.6, lifetime_seconds=1.0) as impatient,
        Client(impatient.url) as idle,
        Client(impatient.url) as busy,
    ):
        idle.start("first")
        busy.start("first")
        for _ in range(4):
            time.sleep(0.2)
            busy.update("again")
        wait_until(lambda: idle.close_code is not None and busy.close_code is not None, 5)
        assert (idle.ended, busy.ended) == ("idle", "lifetime")


def test_a_session_that_is_not_taken_up_is_given_up():
    with serving(resume_seconds=0.3) as hasty:
        client = Client(hasty.url)
        client.start("first")
        client.close()
        wait_until(lambda: hasty.server.sessions.counts() == (0, 1))
        wait_until(lambda: hasty.server.sessions.counts() == (0, 0), 3)


def test_a_model_that_fails_ends_the_session_and_not_the_server():
    with serving(SyntheticEngine(fail_at=3)) as failing:
        for _ in range(2):
            with Client(failing.url) as client:
                client.start("first")
                assert len(frames(client, 100)) == 9
                assert (client.ended, client.close_code) == ("failed", 1011)


def test_the_end_of_a_stream_ends_its_session():
    with serving(SyntheticEngine(groups=3)) as short, Client(short.url) as client:
        client.start("first")
        assert len(frames(client, 100)) == 9
        wait_until(lambda: client.close_code == 1000)
        assert client.ended == "finished"
