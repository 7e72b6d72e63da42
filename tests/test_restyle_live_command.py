"""`wavecore restyle` on live sources, as a program: pipes, exit codes, one line of error."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from wavecore.cli import run

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
    from wavecore.media import read_video

    assert len(read_video(path)) == 8


@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["/dev/video99", "a star", "--source", "camera"], 1, "/dev/video99: no such camera"),
        (["-", "a star", "--source", "pipe", "--rounds", "wavefront"], 2, "expected rounds stream_batch"),
        (["a.mp4", "a star", "--raw-size", "8x8"], 2, "expected raw_size with source pipe or tcp only"),
        (["nowhere", "a star", "--source", "tcp"], 2, "address: expected HOST:PORT"),
        (["missing.mp4", "a star", "--realtime"], 1, "missing.mp4: no such file"),
    ],
)
def test_wrong_use_is_one_line(arguments, code, line, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run(["restyle", *arguments]) == code
    error = capsys.readouterr().err.strip().splitlines()
    assert len(error) == 1 and line in error[0]
