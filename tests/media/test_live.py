"""Live sources and outlets: size changes, damaged packets, ends, absent devices, readers that leave."""

from __future__ import annotations

import io
import os
import signal
import socket
import threading
import time

import av
import numpy as np
import pytest
from support.clips import counting_frames, frame_numbers, write_clip

from wavecore.errors import InputError, UsageError
from wavecore.media import Outlet, PacedFile, open_camera, open_pipe, open_tcp, read_video
from wavecore.media.live import EncodedStream, RawStream, parse_address

SIZE = (64, 48)


def transport_stream(frames, fps=16):
    file = io.BytesIO()
    with av.open(file, "w", format="mpegts") as container:
        stream = container.add_stream("libx264", rate=fps, options={"g": "4", "tune": "zerolatency"})
        stream.height, stream.width, stream.pix_fmt = *frames.shape[1:3], "yuv420p"
        for frame in frames:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, "rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def test_a_paced_file_takes_as_long_as_it_plays(tmp_path):
    path = write_clip(tmp_path / "clip.mp4", counting_frames(9), fps=30)
    began = time.monotonic()
    frames = list(PacedFile(path, SIZE))
    assert frame_numbers(frames) == list(range(9))
    assert time.monotonic() - began >= 8 / 30


def test_a_damaged_file_plays_up_to_the_damage(tmp_path):
    frames = np.random.default_rng(0).integers(0, 256, (40, 48, 64, 3), np.uint8)
    path = write_clip(tmp_path / "clip.mp4", frames, fps=100, container_options={"movflags": "faststart"})
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - len(data) // 3])
    source = PacedFile(path, SIZE)
    assert 0 < len(list(source)) < 40
    assert source.fault is not None and "truncated" in source.fault


def test_raw_frames_are_cut_from_the_bytes_and_brought_to_size():
    frames = counting_frames(5, 32, 24)
    source = RawStream("pipe", SIZE, io.BytesIO(frames.tobytes()), (32, 24))
    got = list(source)
    assert [frame.shape for frame in got] == [(48, 64, 3)] * 5
    assert frame_numbers(got) == list(range(5))
    assert source.fault is None


def test_raw_bytes_that_end_within_a_frame_are_named():
    source = RawStream("pipe", SIZE, io.BytesIO(counting_frames(2).tobytes()[:-7]), SIZE)
    assert len(list(source)) == 1
    assert source.fault == "pipe: ended within a frame: expected 9216 bytes of rgb24 64x48, got 9209"


def test_a_pipe_that_gives_bytes_in_pieces_gives_whole_frames():
    reading, writing = os.pipe()
    data = counting_frames(3).tobytes()

    def write():
        for start in range(0, len(data), 1000):
            os.write(writing, data[start : start + 1000])
        os.close(writing)

    thread = threading.Thread(target=write)
    thread.start()
    with os.fdopen(reading, "rb", buffering=0) as file:
        assert frame_numbers(list(RawStream("pipe", SIZE, file, SIZE))) == [0, 1, 2]
    thread.join()


def test_an_encoded_stream_may_change_its_size():
    data = transport_stream(counting_frames(8)) + transport_stream(counting_frames(8, 96, 72))
    source = EncodedStream("pipe", SIZE, io.BytesIO(data))
    frames = list(source)
    assert {frame.shape for frame in frames} == {(48, 64, 3)}
    assert len(frames) == 16


def test_damaged_packets_cost_their_frames_only():
    data = bytearray(transport_stream(np.random.default_rng(0).integers(0, 256, (40, 48, 64, 3), np.uint8)))
    generator = np.random.default_rng(1)
    for start in range(len(data) // 3, len(data) // 2, 188):
        data[start + 10 : start + 180] = generator.integers(0, 256, 170, np.uint8).tobytes()
    source = EncodedStream("pipe", SIZE, io.BytesIO(bytes(data)))
    frames = list(source)
    assert 15 <= len(frames) <= 40
    assert source.damaged > 0 or len(frames) < 40 or source.fault is None


def test_what_is_not_video_is_one_line():
    with pytest.raises(InputError, match=r"^pipe: cannot be opened"):
        EncodedStream("pipe", SIZE, io.BytesIO(b"not a video" * 1000))
    with pytest.raises(InputError, match=r"^/dev/video99: no such camera"):
        open_camera("/dev/video99", SIZE)


def test_a_connection_is_read_and_its_absence_named():
    with pytest.raises(UsageError, match="HOST:PORT"):
        open_tcp("nowhere", SIZE, None, 0.1)
    with pytest.raises(InputError, match=r"expected a connection within 0\.1 s"):
        open_tcp("127.0.0.1:0", SIZE, None, 0.1)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match="cannot listen"):
            open_tcp(address, SIZE, None, 0.1)
    port = free_port()

    def connect():
        for _ in range(200):
            try:
                with socket.create_connection(("127.0.0.1", port)) as connection:
                    connection.sendall(counting_frames(4).tobytes())
                return
            except OSError:
                time.sleep(0.02)

    thread = threading.Thread(target=connect)
    thread.start()
    assert frame_numbers(list(open_tcp(f"127.0.0.1:{port}", SIZE, SIZE, 10))) == [0, 1, 2, 3]
    thread.join()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.mark.parametrize("text", ["", "host", "host:", "host:port", "host:70000"])
def test_addresses_are_checked(text):
    with pytest.raises(UsageError, match="HOST:PORT"):
        parse_address(text)


def test_an_outlet_writes_what_ffmpeg_reads(tmp_path):
    frames = counting_frames(10)
    with Outlet(str(tmp_path / "out.rgb"), "raw", 16) as outlet:
        outlet.write(frames[:4])
        outlet.write(frames[4:])
    raw = np.frombuffer((tmp_path / "out.rgb").read_bytes(), np.uint8).reshape(frames.shape)
    assert np.array_equal(raw, frames)
    with Outlet(str(tmp_path / "out.ts"), "mpegts", 16) as outlet:
        outlet.write(frames)
    assert frame_numbers(read_video(tmp_path / "out.ts")) == list(range(10))


def test_an_outlet_delivers_each_frame_at_once():
    """Nothing waits in the encoder: the reader has every frame before the outlet is closed."""
    port = free_port()
    received = []
    ready = threading.Event()

    def read():
        source = open_tcp(f"127.0.0.1:{port}", SIZE, SIZE, 10)
        for frame in source:
            received.append(frame)
            ready.set()

    thread = threading.Thread(target=read)
    thread.start()
    outlet = connect_outlet(port)
    outlet.write(counting_frames(1))
    assert ready.wait(10)
    outlet.close()
    thread.join()


def connect_outlet(port):
    for _ in range(200):
        try:
            return Outlet(f"tcp:127.0.0.1:{port}", "raw", 16)
        except InputError:
            time.sleep(0.02)
    raise AssertionError("nobody listens")


def test_a_reader_that_leaves_is_named(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: path.open("rb").close())
    reader.start()
    outlet = Outlet(str(path), "raw", 16)
    reader.join()
    with pytest.raises(InputError, match="the reader closed its end after 0 frames"):
        for _ in range(100):
            outlet.write(counting_frames(1, 640, 480))
    with pytest.raises(InputError, match="cannot write"):
        Outlet("tcp:127.0.0.1:1", "raw", 16)


@pytest.fixture
def feed(monkeypatch):
    """What is written to it comes through standard input, which is a pipe."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as stdin, os.fdopen(writer, "wb", buffering=0) as feed:
        monkeypatch.setattr("sys.stdin", stdin)
        yield feed


@pytest.mark.parametrize("count", [1, 40, 300])
def test_every_frame_of_an_encoded_pipe_comes_out(feed, count):
    data = transport_stream(counting_frames(count))

    def write():
        feed.write(data)
        feed.close()

    writer = threading.Thread(target=write)
    writer.start()
    source = open_pipe(SIZE, None, 30)
    assert frame_numbers(list(source)) == [index % 16 for index in range(count)]
    assert source.fault is None and source.damaged == 0
    writer.join()


@pytest.mark.parametrize("bytes_before", [0, 2000])
def test_a_pipe_that_falls_silent_before_its_first_frame_is_said_so(feed, bytes_before):
    feed.write(transport_stream(counting_frames(9))[:bytes_before])
    with pytest.raises(InputError, match=r"standard input: expected video within 0.2 s, got none"):
        open_pipe(SIZE, None, 0.2)


def test_an_interrupt_ends_the_wait_for_a_silent_pipe(feed):
    timer = threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        open_pipe(SIZE, None, 60)
    timer.join()
