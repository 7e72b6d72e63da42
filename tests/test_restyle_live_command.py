"""`wavecore restyle` on live sources, as a program: pipes, exit codes, one line of error."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest

from wavecore.cli import run
from wavecore.media import read_video

FRAMES = np.random.default_rng(0).integers(0, 256, (9, 128, 128, 3), dtype=np.uint8)


def restyle(*arguments, data):
    command = [
        sys.executable,
        "-m",
        "wavecore",
        "restyle",
        "-",
        "a blue star",
        "--source",
        "pipe",
        "--steps",
        "1",
    ]
    return subprocess.run([*command, *arguments], input=data, capture_output=True, timeout=300)


def test_raw_frames_go_through_a_pipe_and_the_summary_to_standard_error():
    done = restyle("--raw-size", "128x128", "--output-type", "raw", "--json", data=FRAMES.tobytes())
    assert done.returncode == 0, done.stderr
    assert len(done.stdout) == FRAMES.nbytes
    live = json.loads(done.stderr)["live"]
    assert (live["arrived"], live["emitted"], live["dropped"]) == (9, 9, 0)


def test_a_source_that_breaks_off_leaves_a_complete_output(tmp_path):
    path = tmp_path / "out.mp4"
    done = restyle("--raw-size", "128x128", "--output-path", str(path), data=FRAMES.tobytes()[:-1])
    assert done.returncode == 1
    last = done.stderr.decode().strip().splitlines()[-1]
    assert last.startswith("wavecore: standard input: ended within a frame") and "8 frames" in last
    assert len(read_video(path)) == 8


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["/dev/video99", "a star", "--source", "camera"], 1, "/dev/video99: no such camera"),
        (
            ["-", "a star", "--source", "pipe", "--rounds", "wavefront"],
            2,
            "--rounds: expected stream_batch for a live source",
        ),
        (
            ["a.mp4", "a star", "--raw-size", "8x8"],
            2,
            "--raw-size: expected only with source pipe or tcp, got source file",
        ),
        (["nowhere", "a star", "--source", "tcp"], 2, "INPUT: expected HOST:PORT, got 'nowhere'"),
        (["missing.mp4", "a star", "--realtime"], 1, "missing.mp4: no such file"),
    ],
)
def test_wrong_use_is_one_line(arguments, code, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["restyle", *arguments]) == code
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and line in error[0]


@pytest.mark.slow
def test_a_rank_that_is_killed_leaves_every_finished_frame_and_is_named(tmp_path):
    path = tmp_path / "out.mp4"
    command = [
        *(sys.executable, "-m", "wavecore", "restyle", "-", "a blue star", "--source", "pipe"),
        *("--raw-size", "128x128", "--steps", "1", "--placement", "layers", "--devices", "2"),
        *("--output-path", str(path), "--events", str(tmp_path / "run.jsonl")),
    ]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    shown = 0
    while shown < 9:  # frames go in one by one until some have come out
        assert time.monotonic() < deadline and process.poll() is None
        process.stdin.write(FRAMES[shown % 9].tobytes())
        process.stdin.flush()
        time.sleep(0.05)
        log = tmp_path / "run.jsonl"
        lines = log.read_text().splitlines() if log.exists() else []
        shown = sum(json.loads(line)["data"]["frames"] for line in lines if '"display"' in line)
    (rank,) = psutil.Process(process.pid).children()
    rank.kill()
    with contextlib.suppress(BrokenPipeError):
        while process.poll() is None and time.monotonic() < deadline:
            process.stdin.write(FRAMES[0].tobytes())
            process.stdin.flush()
            time.sleep(0.05)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    last = error.decode().strip().splitlines()[-1]
    assert last.startswith("wavecore: ring: rank 1 was ended by signal 9"), error
    assert len(read_video(path)) >= 9
    assert f"the {len(read_video(path))} frames before it were made" in last


@pytest.mark.slow
def test_a_reader_that_stops_for_a_while_gets_the_newest_frames_and_the_rest_is_counted():
    """Writing waits, the source does not: what the queue cannot hold is dropped by rule."""
    command = [
        *(sys.executable, "-m", "wavecore", "restyle", "-", "a blue star", "--source", "pipe", "--realtime"),
        *("--raw-size", "128x128", "--steps", "1", "--output-type", "raw", "--json", "--latency", "1"),
    ]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(command, **pipes)
    process.stdin.write(FRAMES[0].tobytes())
    process.stdin.flush()
    assert len(process.stdout.read(FRAMES[0].nbytes)) == FRAMES[0].nbytes, "the first frame came out"

    def feed():
        for index in range(128):  # eight seconds
            process.stdin.write(FRAMES[index % 9].tobytes())
            process.stdin.flush()
            time.sleep(1 / 16)
        process.stdin.close()

    source = threading.Thread(target=feed)
    source.start()
    source.join()  # nobody reads meanwhile
    written = len(process.stdout.read()) // FRAMES[0].nbytes
    live = json.loads(process.stderr.read())["live"]
    assert process.wait(60) == 0
    assert live["arrived"] == 129 and live["dropped"] > 20
    assert live["emitted"] + live["dropped"] == 129
    assert written == 128, "a frame that was dropped shows as the one after it"
    assert live["longest_queue"] <= 30 * 4 + 12, "about four seconds"
