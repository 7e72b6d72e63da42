"""`wavecore generate` over processes as a program: one that is killed costs no frame that was made."""

import json
import subprocess
import time

import psutil
import pytest

from wavecore.media import read_video
from wavecore.placement.launch import module_command


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
    path, log = tmp_path / "out.mp4", tmp_path / "run.jsonl"
    command = [
        *module_command("wavecore"),
        *("generate", "a blue star", "--seconds", "600", "--size", "64x64", *flags),
        *("--output-path", str(path), "--events", str(log)),
    ]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE)
    deadline = time.monotonic() + 120
    shown = 0
    while shown < 9:
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.1)
        lines = log.read_text().split("\n")[:-1] if log.exists() else []  # whole ones
        shown = sum(json.loads(line)["data"].get("frames", 0) for line in lines if '"display"' in line)
    ranks = [p for p in psutil.Process(process.pid).children(recursive=True) if not p.children()]
    ranks[-1].kill()
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    said = [line for line in error.decode().splitlines() if how in line]
    assert len(said) == 1 and f"process {ranks[-1].pid}: it was ended by {how}" in said[0], error
    assert len(read_video(path)) >= 9
