"""A viewer who does not read costs the server nothing."""

from __future__ import annotations

import itertools
import threading
import time

import msgspec
import psutil
import pytest
from support.serving import SyntheticEngine, serving
from websockets.sync.client import connect

from wavecore.client import Client

encode = msgspec.msgpack.encode
SIZE = 832, 480


@pytest.mark.parametrize("seconds", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_a_slow_reader_is_left_out_and_others_keep_their_rate(seconds):
    with serving(SyntheticEngine(fps=16.0)) as server:
        url = server.url.replace("http", "ws") + "/v1/stream"
        with (
            Client(server.url, decode=False) as other,
            # Reads no more than a frame ahead, and none without being asked.
            connect(url, compression=None, max_size=None, max_queue=1) as slow,
        ):
            slow.send(encode({"type": "start", "id": 0, "protocol": 1, "prompt": "x", "size": SIZE}))
            other.start("first", size=(64, 48))
            times = []
            reader = threading.Thread(
                target=lambda: times.extend(f.shown for f in itertools.islice(other, int(16 * seconds)))
            )
            reader.start()
            time.sleep(seconds / 4)  # queues fill, and the past that is kept
            process = psutil.Process()
            before, peak = process.memory_info().rss, 0
            end = time.monotonic() + 3 * seconds / 4
            while time.monotonic() < end:
                slow.recv(timeout=5)
                time.sleep(min(2.0, seconds / 8))
                peak = max(peak, process.memory_info().rss)
            reader.join(30)
            text = server.get("/metrics").text
            other.stop()
    left_out = next(line for line in text.splitlines() if line.startswith("wavecore_dropped_groups_total "))
    assert float(left_out.split()[1]) > 0
    assert peak - before < 20 << 20
    rate = (len(times) - 1) / (times[-1] - times[0])
    assert rate == pytest.approx(16, rel=0.1)
