"""Sessions over a real connection, on a model of coloured pictures."""

from __future__ import annotations

import io
import socket
import time

import av
import pytest
from PIL import Image
from support.serving import SIZE, SyntheticEngine, frames, picture, read_picture, serving, wait_until

from wavecore.client import Client, ServerError
from wavecore.errors import WavecoreError


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


def test_prompts_of_every_script_are_taken(client):
    client.start("🟥 שלום ‮ مرحبا 你好")
    assert client.update("𝕏\u202e🟦") > 0
    with pytest.raises(ServerError) as caught:
        client.update("a\0b")
    assert (caught.value.code, "NUL" in str(caught.value)) == ("invalid", True)


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
