"""Commands that are asked to stop: exit code, complete outputs of the frames so far, a report."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image
from safetensors.torch import load_file
from support.fake_pipeline import FakePipeline, FakeSession

import wavecore
from wavecore.cli import run
from wavecore.media import read_video
from wavecore.trace import read_events

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize(
    ("numbers", "flags", "count"),
    [
        ([signal.SIGINT], ["--output-path", "out.mp4"], lambda path: len(read_video(path / "out.mp4"))),
        (
            [signal.SIGHUP],
            ["--output-path", "out", "--output-type", "frames"],
            lambda path: len(os.listdir(path / "out")),
        ),
        (
            [signal.SIGINT, signal.SIGTERM, signal.SIGHUP] * 5,
            ["--output-path", "out.safetensors", "--output-type", "latent"],
            lambda path: 4 * len(load_file(path / "out.safetensors")["latents"]) - 3,
        ),
    ],
    ids=["video", "frames", "latent"],
)
def test_interrupt(
    tmp_path: Path, numbers: list[int], flags: list[str], count: Callable[[Path], int]
) -> None:
    """Real signals to a real process: exit code 130 and a complete file of the frames so far."""
    program = f"""
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in a background job
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
        extra = ["--contact-sheet", "sheet.png", "--events", "run.jsonl", "--json"]
        sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / "tests")!r}]
        import wavecore
        from support.fake_pipeline import FakePipeline
        wavecore.load = lambda model, **parts: FakePipeline(delay=0.02)
        from wavecore.cli import main
        sys.argv[1:] = ["generate", "a", "--seconds", "600", *extra, *{flags!r}]
        main()
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=tmp_path, **pipes) as process:
        log = tmp_path / "run.jsonl"
        deadline = time.monotonic() + 300
        while not (log.exists() and log.read_bytes().count(b"display") > 10) and time.monotonic() < deadline:
            time.sleep(0.05)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.02)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 130, err
    assert err.split() == ["wavecore:", "interrupted"]
    result = json.loads(out)
    assert result["interrupted"]
    assert 40 < result["frames"] < 9600
    assert abs(count(tmp_path) - result["frames"]) <= 4, "at most the group that was being written differs"
    assert sorted(os.listdir(tmp_path)) == sorted([flags[1], "run.jsonl", "sheet.png"])
    assert Image.open(tmp_path / "sheet.png").size[0] > 100
    assert [event.kind for event in read_events(log)].count("finish") == 1


def test_an_interrupt_while_the_session_ends_is_reported_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    fake = FakePipeline()
    monkeypatch.setitem(vars(wavecore), "load", lambda model, **parts: fake)
    monkeypatch.chdir(tmp_path)

    def interrupted(session: FakeSession) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(FakeSession, "close", interrupted)
    assert run(["generate", "a", "--num-frames", "9", "--contact-sheet", "sheet.png", "--json"]) == 130
    result = json.loads(capsys.readouterr().out)
    assert (result["frames"], result["interrupted"]) == (9, True)
    assert sorted(os.listdir()) == ["output.mp4", "sheet.png"]
