"""The profiling script, with a stand-in for Nsight Systems that writes down how it was called."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "tools" / "profile.sh"


def profile(folder, *arguments, nsys=True):
    tools = folder / "bin"
    tools.mkdir()
    if nsys:
        (tools / "nsys").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tools / "nsys").chmod(0o755)
    path = f"{tools}:/usr/bin:/bin"
    return subprocess.run(
        ["bash", SCRIPT, *arguments], env=os.environ | {"PATH": path}, capture_output=True, text=True
    )


def test_a_run_over_replicas_is_profiled_with_its_log(tmp_path):
    done = profile(tmp_path, "out/run", "a red ball", "--steps", "1")
    assert done.returncode == 0, done.stderr
    arguments = done.stdout.splitlines()
    split = arguments.index("python")
    assert arguments[:split] == [
        *("profile", "--output", "out/run", "--force-overwrite", "true"),
        *("--trace", "cuda,nvtx,osrt", "--trace-fork-before-exec", "true"),
    ]
    assert arguments[split:] == [
        *("python", "-m", "wavecore", "generate", "a red ball", "--steps", "1", "--placement", "replicas"),
        *("--events", "out/run.jsonl", "--output-path", "out/run.mp4"),
    ]


@pytest.mark.parametrize(
    ("arguments", "nsys", "code", "message"),
    [
        ((), True, 2, "usage: tools/profile.sh OUTPUT PROMPT [FLAGS]"),
        (("out", "a ball"), False, 1, "expected nsys (Nsight Systems) on the path, got none"),
    ],
)
def test_what_is_missing(tmp_path, arguments, nsys, code, message):
    done = profile(tmp_path, *arguments, nsys=nsys)
    assert done.returncode == code and message in done.stderr and done.stderr.count("\n") == 1
