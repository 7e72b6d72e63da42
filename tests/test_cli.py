"""The command line, on a pipeline without a model: outputs, exit codes, one line for every wrong input."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from support.clips import counting_frames, cut, write_audio, write_clip
from support.fake_pipeline import FakePipeline

import wavecore
from wavecore.cli import run
from wavecore.errors import UsageError
from wavecore.media import VideoReader, read_video
from wavecore.models.checkpoint import save_model
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.placement.launch import module_command
from wavecore.trace import Trace, read_events

Captured = pytest.CaptureFixture[str]
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakePipeline:
    """A fake model for every name, in an empty working directory."""
    fake = FakePipeline()
    monkeypatch.setitem(vars(wavecore), "load", lambda model, **parts: fake)
    monkeypatch.chdir(tmp_path)
    return fake


def refused(arguments: list[str], code: int, message: str, capsys: Captured) -> None:
    """Check for this exit code, one line on standard error that ends in `message`, and no file made."""
    before = sorted(Path.cwd().rglob("*"))
    assert run(arguments) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1, captured.err
    assert lines[0].startswith("wavecore: ")
    assert message in lines[0]
    assert sorted(Path.cwd().rglob("*")) == before


@pytest.mark.parametrize(
    ("flags", "frames"), [(["--seconds", "2"], 32), (["--num-frames", "83"], 83), ([], 80)]
)
def test_generate_video(pipe: FakePipeline, capsys: Captured, flags: list[str], frames: int) -> None:
    assert run(["generate", "a red ball", *flags]) == 0
    assert f"output.mp4: {frames} frames" in capsys.readouterr().out
    reader = VideoReader("output.mp4")
    assert len(list(reader)) == frames
    assert (reader.fps, reader.info.width, reader.info.height) == (16, 32, 24)
    assert os.listdir() == ["output.mp4"]
    assert pipe.sessions[0].closed


def test_settings_reach_the_session(pipe: FakePipeline) -> None:
    flags = ["--seed", "7", "--steps", "2", "--size", "64x48", "--fps", "8", "--rounds", "stream-batch"]
    assert run(["generate", "a red ball", *flags, "--num_frames", "5"]) == 0
    session = pipe.sessions[0]
    assert session.prompts == ["a red ball"]
    expected = {"seed": 7, "steps": 2, "fps": 8, "rounds": "stream_batch"}
    expected |= {"placement": "local", "control": "free"}
    assert expected.items() <= session.options.items()
    assert read_video("output.mp4").shape == (5, 48, 64, 3)
    assert VideoReader("output.mp4").fps == 8


def test_generate_frames_and_latent(pipe: FakePipeline) -> None:
    assert run(["generate", "a", "--num-frames", "6", "--output-type", "frames"]) == 0
    assert sorted(os.listdir("output")) == [f"{index:06d}.png" for index in range(6)]
    assert run(["generate", "a", "--num-frames", "9", "--output-type", "latent"]) == 0
    latents = load_file("output.safetensors")["latents"]
    assert latents.shape == (3, 16, 4, 4)
    assert latents[:, 0, 0, 0].tolist() == [0, 1, 2]


def test_json_log_and_contact_sheet(pipe: FakePipeline, capsys: Captured) -> None:
    arguments = ["--seconds", "1", "--json", "--events", "run.jsonl", "--contact-sheet", "sheet.png"]
    assert run(["generate", "a red ball", *arguments]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    result = json.loads(captured.out)
    assert (result["frames"], result["fps"], result["seconds"]) == (16, 16, 1)
    assert (result["output_path"], result["interrupted"]) == ("output.mp4", False)
    assert 0 < result["first_frame_seconds"] <= result["wall_seconds"]
    assert result["steady_frames_per_second"] is None, "a burst of less than a second tells no rate"
    events = list(read_events("run.jsonl"))
    assert [event.kind for event in events] == ["run"] + ["display"] * 5 + ["finish"]
    assert events[0].data["settings"]["prompt"] == "a red ball"
    assert sum(event.data["frames"] for event in events if event.kind == "display") == 16
    assert Image.open("sheet.png").size == (8 * 34 - 2, 2 * 26 - 2)

    assert run(["trace", "run.jsonl"]) == 0
    entries = json.loads(Path("run.perfetto.json").read_text())["traceEvents"]
    assert sum(entry["name"] == "display" for entry in entries) == 5


def test_schedule_changes_the_prompt(pipe: FakePipeline) -> None:
    entries = ["{at: 0, prompt: a ball}", "{at: 1, prompt: a star}", "{at: 90, prompt: a box}"]
    Path("prompts.yaml").write_text(f"[{', '.join(entries)}]")
    assert run(["generate", "--prompts", "prompts.yaml", "--seconds", "2"]) == 0
    session = pipe.sessions[0]
    assert session.prompts == ["a ball", "a star"]
    assert session.requested_at == [17], "before the first group that begins at 1 s or later"
    levels = read_video("output.mp4").mean(axis=(1, 2, 3)).round()
    assert abs(levels[:17] - 20).max() < 4
    assert abs(levels[17:] - 60).max() < 4


def test_config(pipe: FakePipeline, capsys: Captured) -> None:
    Path("config.yaml").write_text("prompt: from the file\nsteps: 3\nnum-frames: 5\n")
    assert run(["generate", "--config", "config.yaml", "--steps", "2"]) == 0
    assert (pipe.sessions[0].prompts, pipe.sessions[0].options["steps"]) == (["from the file"], 2)
    capsys.readouterr()
    Path("config.yaml").write_text("stpes: 3\n")
    message = "config.yaml: stpes: unknown key, did you mean steps?"
    refused(["generate", "a", "--config", "config.yaml"], 2, message, capsys)
    refused(["generate", "a", "--config", "none.yaml"], 2, "none.yaml: cannot read: No such file", capsys)


@pytest.mark.parametrize("count", [1, 2, 5, 83])
def test_restyle_gives_as_many_frames(pipe: FakePipeline, capsys: Captured, count: int) -> None:
    write_clip(Path("clip.mp4"), counting_frames(count, 62, 46), fps=30)
    assert run(["restyle", "clip.mp4", "a star", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["frames"], result["fps"]) == (count, 30)
    assert (result["steady_frames_per_second"] is not None) == (count > 30)
    assert read_video("output.mp4").shape == (count, 24, 32, 3)


def test_restyle_size_and_rate(pipe: FakePipeline) -> None:
    write_clip(Path("clip.mp4"), counting_frames(16), fps=16)
    assert run(["restyle", "clip.mp4", "a star", "--size", "48x16", "--fps", "8"]) == 0
    reader = VideoReader("output.mp4")
    assert (len(list(reader)), reader.fps, reader.info.width, reader.info.height) == (8, 8, 48, 16)


def test_bad_input_videos(pipe: FakePipeline, capsys: Captured) -> None:
    Path("empty.mp4").touch()
    Path("folder.mp4").mkdir()
    Path("text.mp4").write_text("not a video")
    write_audio(Path("sound.mp4"))
    cut(write_clip(Path("half.mp4"), counting_frames(83)), 0.5)
    for name, message in [
        ("empty.mp4", "empty.mp4: the file is empty"),
        ("folder.mp4", "folder.mp4: is a directory"),
        ("text.mp4", "text.mp4: not a video file"),
        ("sound.mp4", "sound.mp4: has no video stream, only audio"),
        ("half.mp4", "half.mp4: truncated"),
        ("none.mp4", "none.mp4: no such file"),
    ]:
        refused(["restyle", name, "a star"], 1, message, capsys)
    assert not pipe.sessions


def test_truncation_found_while_reading_leaves_nothing(pipe: FakePipeline, capsys: Captured) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 48, 64, 3), dtype=np.uint8)
    cut(write_clip(Path("half.mp4"), noise, container_options={"movflags": "faststart"}), 0.5)
    refused(["restyle", "half.mp4", "a star"], 1, "half.mp4: truncated", capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["generate"], "expected PROMPT, or a prompt schedule"),
        (["generate", ""], "PROMPT: expected text that is not blank"),
        (["generate", "  "], "PROMPT: expected text that is not blank"),
        (["generate", "a\0b"], "PROMPT: expected text without NUL"),
        (["generate", "a", "--seconds", "-1"], "--seconds: expected a number above 0, got '-1'"),
        (["generate", "a", "--seconds", "0"], "--seconds: expected a number above 0, got '0'"),
        (["generate", "a", "--fps", "0"], "--fps: expected a number above 0, got '0'"),
        (["generate", "a", "--steps", "0"], "--steps: expected at least 1, got '0'"),
        (["generate", "a", "--stpes", "2"], "generate: no flag --stpes, did you mean --steps?"),
        (["generate", "a", "--num_frame", "2"], "did you mean --num-frames?"),
        (["generate", "a", "--qqqqqqqqqq"], "no flag --qqqqqqqqqq, see wavecore generate --help"),
        (["generate", "a", "b"], "unexpected extra argument"),
        (["generate", "a", "--steps"], "--steps"),
        (["generat", "a"], "no command 'generat', did you mean generate?"),
        (["--vresion"], "no flag --vresion, did you mean --version?"),
        (["generate", "a", "--output-path", "out.avi"], "--output-path: expected a path that ends in .mp4"),
        (["generate", "a", "--contact-sheet", "a.jpg"], "--contact-sheet: expected a path that ends in .png"),
        (["train"], "train: Missing argument 'MODEL'"),
        (["train", "cats"], "MODEL: expected \"sprites\", got 'cats'"),
        (["train", "sprites", "--minutes", "0"], "--minutes: expected a finite number above 0, got 0.0"),
        (["eval", "--steps", "0"], "--steps"),
        (["eval", "--quantization", "int4"], "--quantization"),
        (["eval", "--size", "8x8"], "--size: expected none without --source and --edited"),
        (["eval", "--source", "a", "--edited", "b", "--seed", "1"], "--seed: expected none with --source"),
        (
            ["train", "sprites", "--stage", "codec", "--minutes", "1"],
            "--minutes: expected none with --stage codec",
        ),
        (["simulate", "--laws", "--plots", "x"], "--plots: expected none with --laws"),
        (["simulate", "--rate", "1"], "--rate: expected none without --process poisson"),
        (["simulate", "--overlap", "2"], "--overlap: expected none without --adapter keyframes"),
        (["restyle"], "INPUT: expected a value, got none"),
        (["restyle", "clip.mp4"], "PROMPT: expected a value, got none"),
    ],
)
def test_wrong_usage(pipe: FakePipeline, capsys: Captured, arguments: list[str], message: str) -> None:
    refused(arguments, 2, message, capsys)
    assert not pipe.sessions


def test_outputs_that_cannot_be_written(pipe: FakePipeline, capsys: Captured) -> None:
    for flag, name in [("--output-path", "a.mp4"), ("--events", "a.jsonl"), ("--contact-sheet", "a.png")]:
        message = f"none/{name}: cannot write: its directory does not exist"
        refused(["generate", "a", flag, f"none/{name}"], 1, message, capsys)
    assert not pipe.sessions, "found out before the model is loaded"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (
            ["--events", "output.mp4"],
            "--output-path, --events: expected different paths, got output.mp4 twice",
        ),
        (
            ["--contact-sheet", "a.png", "--events", "./a.png"],
            "--contact-sheet, --events: expected different paths, got a.png twice",
        ),
        (["--events", "-"], "--events: expected the path of a file, got - (standard output)"),
    ],
)
def test_outputs_that_would_replace_each_other(
    pipe: FakePipeline, capsys: Captured, flags: list[str], message: str
) -> None:
    refused(["generate", "a", *flags], 2, message, capsys)
    assert not pipe.sessions


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["restyle", "in.mp4", "a", "--events", "in.mp4"], "INPUT, --events"),
        (["restyle", "in.mp4", "a", "--events", "link.mp4"], "INPUT, --events"),
        (["restyle", "in.mp4", "a", "--output-path", "./in.mp4"], "INPUT, --output-path"),
        (
            ["restyle", "in.mp4", "a", "--realtime", "--output-type", "mpegts", "--output-path", "in.mp4"],
            "INPUT, --output-path",
        ),
        (["restyle", "in.png", "a", "--contact-sheet", "in.png"], "INPUT, --contact-sheet"),
        (["restyle", "in.mp4", "a", "--checkpoint", "w.pt", "--events", "w.pt"], "--checkpoint, --events"),
        (["generate", "a", "--prompts", "p.yaml", "--events", "p.yaml"], "--prompts, --events"),
        (["generate", "a", "--config", "c.yaml", "--events", "c.yaml"], "--config, --events"),
        (["generate", "--config", "c.yaml", "--events", "p.yaml"], "c.yaml: prompts, --events"),
        (["generate", "a", "--model", "w.pt", "--events", "w.pt"], "--model, --events"),
    ],
)
def test_outputs_that_would_replace_what_is_read(
    pipe: FakePipeline, capsys: Captured, arguments: list[str], named: str
) -> None:
    texts = {"p.yaml": "[{at: 1, prompt: a}]", "c.yaml": "prompt: b\nprompts: p.yaml"}
    texts |= dict.fromkeys(("in.mp4", "in.png", "w.pt"), "kept")
    for name, text in texts.items():
        Path(name).write_text(text)
    Path("link.mp4").symlink_to("in.mp4")
    refused(arguments, 2, f"{named}: expected different paths, got", capsys)
    assert {name: Path(name).read_text() for name in texts} == texts
    assert not pipe.sessions


def test_what_the_library_refuses_is_named_as_it_was_given(
    pipe: FakePipeline, capsys: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuse(prompt: str, **options: Any) -> None:
        raise UsageError("devices, num_frames: expected 1, got 2")

    monkeypatch.setattr(pipe, "session", refuse)
    refused(["generate", "a", "--devices", "2"], 2, "--devices, --num-frames: expected 1, got 2", capsys)
    (tmp_path / "c.yaml").write_text("devices: 2")
    refused(["generate", "a", "--config", "c.yaml"], 2, "c.yaml: devices, --num-frames: expected 1", capsys)


def test_a_log_is_not_replaced_by_its_timeline(capsys: Captured, tmp_path: Path) -> None:
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        trace.record("run")
    before = log.read_bytes()
    assert run(["trace", str(log), "--output-path", str(log)]) == 2
    assert "--output-path: expected another path than that of the log" in capsys.readouterr().err
    assert log.read_bytes() == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_an_error_that_standard_output_has_no_room_for_is_one_line() -> None:
    command = [*module_command("wavecore"), "trace", "none.jsonl", "--json"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert done.stderr == "wavecore: none.jsonl: cannot read: No such file or directory\n"


def test_error_with_json(pipe: FakePipeline, capsys: Captured) -> None:
    assert run(["generate", "a", "--steps", "0", "--json"]) == 2
    captured = capsys.readouterr()
    assert json.loads(captured.out) == {"error": "--steps: expected at least 1, got '0'", "exit_code": 2}


def test_a_size_that_memory_has_no_room_for_is_one_line(
    pipe: FakePipeline, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipe, "session", lambda *_, **__: torch.empty(2**60))
    refused(["generate", "a", "--size", "999968x999968"], 1, "out of memory: a smaller size", capsys)


def test_failing_model_leaves_nothing(pipe: FakePipeline) -> None:
    pipe.fail_at = 3
    with pytest.raises(RuntimeError, match="the model failed"):
        run(["generate", "a"])
    assert os.listdir() == []
    assert pipe.sessions[0].closed


@pytest.mark.parametrize("prompt", ["x" * 100_000, "🦊", "赤い球", "كرة حمراء", "-- a"])
def test_prompts_arrive_unchanged(pipe: FakePipeline, prompt: str) -> None:
    assert run(["generate", "--num-frames", "1", "--", prompt]) == 0
    assert pipe.sessions[0].prompts == [prompt]


def test_convert(pipe: FakePipeline, capsys: Captured) -> None:
    config = DiTConfig(dim=16, heads=2, layers=1, ffn_dim=32, text_dim=8, frequency_dim=8, patch=(1, 2, 2))
    save_model(CausalWanDiT(config), "wan")
    assert run(["convert", "wan", "--to", "diffusers", "--output-path", "other"]) == 0
    assert run(["convert", "other", "--to", "original", "--output-path", "back.safetensors", "--json"]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["files"] == ["back.safetensors"]
    (first,) = Path("wan").glob("*.safetensors")
    before, after = load_file(first), load_file("back.safetensors")
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    output = ["--output-path", "x"]
    refused(["convert", "wan", "--to", "keras", *output], 2, "--to: expected original or diffusers", capsys)
    refused(["convert", "none", "--to", "original", *output], 1, "none: expected a weight file", capsys)
    refused(["convert", "wan", "--to", "original"], 2, "--output-path", capsys)


def test_doctor(capsys: Captured) -> None:
    assert run(["doctor", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["python"] == ".".join(map(str, sys.version_info[:3]))
    runs = found["operations"]["cpu"]["runs"]
    assert runs.split()[0] in ("native", "torch", "reference")
    assert runs.startswith("native") == ("; matrix units: " in runs)
    assert found["operations"]["cpu"]["reference"] == "can run"
    assert found["media"]["h264_encoder"] == "libx264"
    assert run(["doctor"]) == 0
    text = capsys.readouterr().out
    for part in ("torch", "processor", "operations", "models"):
        assert f"\n{part}" in text


def test_help_and_version(capsys: Captured) -> None:
    assert run([]) == 0
    assert "generate" in capsys.readouterr().out
    assert run(["--version"]) == 0
    assert capsys.readouterr().out == f"wavecore {wavecore.__version__}\n"
    for name in ("generate", "restyle", "eval", "train", "convert", "trace", "doctor"):
        assert run([name, "--help"]) == 0
        assert f"wavecore {name}" in capsys.readouterr().out
