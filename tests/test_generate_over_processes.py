"""`wavecore generate` over processes as a program: one that is killed costs no frame that was made."""

import json
import signal
import subprocess
import time

import psutil
import pytest

from wavecore.media import read_video
from wavecore.placement.launch import module_command


def started(folder, flags):
    """An endless run in a folder, once 9 frames are written."""
    log = folder / "run.jsonl"
    command = [
        *module_command("wavecore"),
        *("generate", "a blue star", "--seconds", "600", "--size", "64x64", *flags),
        *("--output-path", str(folder / "out.mp4"), "--events", str(log)),
    ]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    shown = 0
    while shown < 9:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
        lines = log.read_text().split("\n")[:-1] if log.exists() else []  # whole ones
        shown = sum(json.loads(line)["data"].get("frames", 0) for line in lines if '"display"' in line)
    return process


@pytest.mark.parametrize(
    ("flags", "how"),
    [
        (["--placement", "replicas", "--devices", "2", "--control", "free"], "SIGKILL"),
        (["--placement", "replicas", "--devices", "2", "--control", "speculative"], "SIGKILL"),
        pytest.param(["--decoders", "1"], "signal 9", marks=pytest.mark.slow),
    ],
    ids=["free", "speculative", "decoders"],
)
def test_a_process_that_is_killed_is_named_once_and_the_frames_before_it_are_kept(tmp_path, flags, how):
    process = started(tmp_path, flags)
    ranks = [p for p in psutil.Process(process.pid).children(recursive=True) if not p.children()]
    ranks[-1].kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    said = [line for line in error.decode().splitlines() if how in line]
    assert len(said) == 1 and f"process {ranks[-1].pid}: it was ended by {how}" in said[0], error
    assert len(read_video(tmp_path / "out.mp4")) >= 9


@pytest.mark.parametrize(
    "flags",
    [
        ["--placement", "layers", "--rounds", "stream_batch"],
        pytest.param(["--placement", "replicas", "--devices", "2"], marks=pytest.mark.slow),
        pytest.param(["--placement", "sequence"], marks=pytest.mark.slow),
    ],
    ids=["layers", "replicas", "sequence"],
)
def test_signals_that_follow_each_other_lose_no_frame(tmp_path, flags):
    process = started(tmp_path, flags)
    ranks = psutil.Process(process.pid).children(recursive=True)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        process.send_signal(number)
        time.sleep(0.02)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and error.decode().split() == ["wavecore:", "interrupted"]
    assert len(read_video(tmp_path / "out.mp4")) >= 9
    assert not psutil.wait_procs(ranks, timeout=30)[1]
