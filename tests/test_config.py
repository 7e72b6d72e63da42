"""Settings from flags and files: precedence, and errors that name the flag or the path in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wavecore.config import GenerateSettings, PromptAt, RestyleSettings, label, load_settings, read_schedule
from wavecore.errors import UsageError
from wavecore.prompt import check_prompt


def load(tmp_path: Path, text: str, **flags: Any) -> GenerateSettings:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return load_settings(GenerateSettings, flags, path)


def test_flag_before_file_before_default(tmp_path: Path) -> None:
    text = "steps: 3\nnum-frames: 9\noutput_type: frames\n"
    settings = load(tmp_path, text, prompt="a ball", steps="2", seed=None)
    assert (settings.steps, settings.frames, settings.seed) == (2, 9, 0)
    assert settings.output == Path("output")
    assert load(tmp_path, "", prompt="a ball").frames == 80


def test_a_flag_puts_aside_the_other_length_of_the_file(tmp_path: Path) -> None:
    assert load(tmp_path, "seconds: 5\n", prompt="a", num_frames="7").frames == 7
    assert load(tmp_path, "num_frames: 5\n", prompt="a", seconds="2").frames == 32
    with pytest.raises(UsageError, match="--seconds, --num-frames: expected one of them, got both"):
        load_settings(GenerateSettings, {"prompt": "a", "seconds": "1", "num_frames": "7"})


def test_length(tmp_path: Path) -> None:
    for flags, frames in [
        ({"seconds": "0.001"}, 1),
        ({"seconds": 2, "fps": "7.5"}, 15),
        ({"num_frames": 9}, 9),
    ]:
        assert load_settings(GenerateSettings, {"prompt": "a", **flags}).frames == frames


@pytest.mark.parametrize("text", ["128x64", "128X64", " 128 × 64 "])
def test_size(text: str) -> None:
    assert load_settings(GenerateSettings, {"prompt": "a", "size": text}).size == (128, 64)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("steps", "0", "--steps: expected at least 1, got '0'"),
        ("steps", "-1", "--steps: expected at least 1, got '-1'"),
        ("steps", "2.5", "--steps: expected an integer, got '2.5'"),
        ("steps", "many", "--steps: expected an integer, got 'many'"),
        ("seconds", "0", "--seconds: expected a number above 0, got '0'"),
        ("seconds", "-1", "--seconds: expected a number above 0, got '-1'"),
        ("seconds", "nan", "--seconds: expected a finite number, got 'nan'"),
        ("seconds", "inf", "--seconds: expected a finite number, got 'inf'"),
        ("num_frames", "0", "--num-frames: expected at least 1, got '0'"),
        ("fps", "0", "--fps: expected a number above 0, got '0'"),
        ("seed", "-1", "--seed: expected at least 0, got '-1'"),
        ("size", "128", "--size: expected WIDTHxHEIGHT in pixels, such as 128x128, got '128'"),
        ("size", "0x16", "--size: expected WIDTHxHEIGHT in pixels, such as 128x128, got '0x16'"),
        ("rounds", "wave", "--rounds: expected 'wavefront', 'sequential' or 'stream_batch', got 'wave'"),
        ("output_type", "gif", "--output-type: expected 'video', 'frames' or 'latent', got 'gif'"),
        ("output_path", "", "--output-path: expected a path, got ''"),
        ("prompt", "", "PROMPT: expected text that is not blank, got none"),
        ("prompt", " \t\n", "PROMPT: expected text that is not blank, got 3 blank characters"),
        ("prompt", "a\0b", "PROMPT: expected text without NUL, got one at character 1"),
        ("prompt", "a\udcff", "PROMPT: expected valid UTF-8, got an invalid byte at character 1"),
    ],
)
def test_bad_flag(name: str, value: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load_settings(GenerateSettings, {"prompt": "a ball", name: value})
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("steps: 0", "steps: expected at least 1, got 0"),
        ("steps: four", "steps: expected an integer, got 'four'"),
        ("steps: true", "steps: expected a number, got True"),
        ("steps: [1]", "steps: expected an integer, got [1]"),
        ("stpes: 4", "stpes: unknown key, did you mean steps?"),
        ("num-frame: 4", "num-frame: unknown key, did you mean num_frames?"),
        ("zzz: 4", "zzz: unknown key, expected one of model, recipe, checkpoint, vae,"),
        ("num-frames: 4\nnum_frames: 5", "num_frames: expected each key once, got it twice"),
        ("output_type: {a: 1}", "output_type: expected 'video', 'frames' or 'latent', got {'a': 1}"),
        ("model: 3", "model: expected text, got 3"),
        ("prompts: 3", "prompts: expected a list, got 3"),
        ("prompts: []", "prompts: expected at least one entry, got none"),
        ("prompts: [1]", "prompts[0]: expected a mapping, got 1"),
        ("prompts: [{at: 0}]", "prompts[0].prompt: expected a value, got none"),
        ("prompts: [{at: -1, prompt: a}]", "prompts[0].at: expected at least 0, got -1"),
        ("prompts: [{at: .nan, prompt: a}]", "prompts[0].at: expected a finite number, got nan"),
        ("prompts: [{at: 1, prompt: ''}]", "prompts[0].prompt: expected text that is not blank, got none"),
        ('prompts: [{at: 1, prompt: "\\0"}]', "prompts[0].prompt: expected text without NUL"),
        ("prompts: [{at: 1, promt: a}]", "prompts[0].promt: unknown key, did you mean prompt?"),
        ("prompts: [{at: 1, prompt: a, x: b}]", "prompts[0].x: unknown key, expected one of at, prompt"),
        ("prompts: [{at: 1, prompt: a}, {at: 1, prompt: b}]", "prompts: entry 1: expected `at` above 1"),
    ],
)
def test_bad_file(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text, prompt="a ball")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'config.yaml'}: {expected}")
    assert "\n" not in message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- 1", "expected a mapping of settings, got [1]"),
        ("a: [", "line 1: not valid YAML"),
        ("a: b: c", "line 1: not valid YAML"),
        ("!!python/object/apply:os.system ['true']", "line 1: not valid YAML"),
        ("\x01", "not valid YAML"),
    ],
)
def test_not_a_config(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(tmp_path, text, prompt="a ball")
    assert f"config.yaml: {expected}" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_config_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"none\.yaml: cannot read: No such file"):
        load_settings(GenerateSettings, {"prompt": "a"}, tmp_path / "none.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"model: \xff")
    with pytest.raises(UsageError, match=r"latin\.yaml: not valid YAML"):
        load_settings(GenerateSettings, {"prompt": "a"}, tmp_path / "latin.yaml")


def test_schedule(tmp_path: Path) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text("- {at: 0, prompt: a red ball}\n- {at: 2.5, prompt: 青い星 🌟}\n")
    entries = [PromptAt(at=0, prompt="a red ball"), PromptAt(at=2.5, prompt="青い星 🌟")]
    assert read_schedule(path) == entries
    assert load_settings(GenerateSettings, {"prompts": str(path)}).schedule == entries
    assert load(tmp_path, f"prompts: {path}").schedule == entries

    path.write_text("- {at: 2.5, prompt: a star}\n")
    settings = load_settings(GenerateSettings, {"prompt": "a ball", "prompts": str(path)})
    assert [(entry.at, entry.prompt) for entry in settings.schedule] == [(0, "a ball"), (2.5, "a star")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- {at: 0, prompt: a}\n- {at: soon, prompt: b}", ": [1].at: expected a number, got 'soon'"),
        (
            "- {at: 0, prompt: a}\n- {at: 0, prompt: b}",
            ": entry 1: expected `at` above 0 (the entry before), got 0",
        ),
        ("at: 0", ": expected a list, got {'at': 0}"),
        ("", ": expected a list, got None"),
        ("- {at: 0, prompt: a, when: 1}", ": [0].when: unknown key, expected one of at, prompt"),
        ("- {at: 0, prompt: a, prompts: b}", ": [0].prompts: unknown key, did you mean prompt?"),
    ],
)
def test_bad_schedule(tmp_path: Path, text: str, expected: str) -> None:
    path = tmp_path / "prompts.yaml"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        read_schedule(path)
    assert str(caught.value) == f"{path}{expected}"
    with pytest.raises(UsageError) as caught:
        load_settings(GenerateSettings, {"prompts": str(path)})
    assert str(caught.value) == f"{path}{expected}"


def test_prompt_and_schedule_must_agree(tmp_path: Path) -> None:
    for flags, got in [
        ({}, "got no prompt"),
        ({"prompts": [{"at": 1, "prompt": "a"}]}, "got neither"),
        ({"prompt": "a", "prompts": [{"at": 0, "prompt": "b"}]}, "got both"),
    ]:
        with pytest.raises(UsageError, match=got):
            load_settings(GenerateSettings, flags)


def test_restyle_needs_its_arguments() -> None:
    with pytest.raises(UsageError, match="INPUT: expected a value, got none"):
        load_settings(RestyleSettings, {"prompt": "a"})
    settings = load_settings(RestyleSettings, {"prompt": "a", "input": "clip.mp4"})
    assert (settings.fps, settings.input) == (None, Path("clip.mp4"))


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        (
            {"rounds": "wavefront", "placement": "layers"},
            "--rounds: expected stream_batch with placement layers",
        ),
        ({"rounds": "wavefront", "realtime": True}, "--rounds: expected stream_batch for a live source"),
        (
            {"input": "-"},
            r"INPUT: expected a path, or - \(standard input\) with source pipe, got - with source file",
        ),
        (
            {"source": "pipe"},
            "INPUT: expected a path, or - .* with source pipe, got clip.mp4 with source pipe",
        ),
        ({"latency": "0.5"}, "--latency: expected only with a live source"),
        ({"timeout": "10"}, "--timeout: expected only with a live source"),
        ({"noise_span": "0.1"}, "--noise-span: expected only with noise motion or compatible, got fixed"),
        ({"sink_block": "2"}, "--sink-block: expected only with sinks adaptive, got none given"),
        (
            {"sinks": "static", "sink_block": "2"},
            "--sink-block: expected only with sinks adaptive, got static",
        ),
        ({"sinks": "off", "sink_chunks": "2"}, "--sink-chunks: expected none with sinks off"),
        ({"decode_on": "1", "decoders": "1"}, "--decode-on, --decoders: expected one of them, got both"),
    ],
)
def test_what_would_be_ignored_is_refused(flags: dict[str, Any], expected: str) -> None:
    with pytest.raises(UsageError, match=f"^{expected}"):
        load_settings(RestyleSettings, {"prompt": "a", "input": "clip.mp4", **flags})


def test_a_setting_of_the_file_is_named_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config.yaml: latents: expected only with control speculative"):
        load(tmp_path, "latents: 3\n", prompt="a")
    path = tmp_path / "config.yaml"
    path.write_text("num-frames: 3\n")
    assert label("num_frames", {"num_frames": None}, path) == f"{path}: num-frames"
    assert label("num_frames", {"num_frames": "2"}, path) == "--num-frames"


@pytest.mark.parametrize(
    "text",
    [
        "a ball",
        "x" * 100_000,
        "🦊🌈",
        "赤い球が左へ転がる",
        "كرة حمراء تتدحرج",
        "{braces} [brackets]",
        "a\nb",
    ],
)
def test_prompts_of_any_script_and_length(text: str) -> None:
    assert check_prompt(text) == text
    assert load_settings(GenerateSettings, {"prompt": text}).prompt == text


def test_check_prompt_names_its_argument() -> None:
    with pytest.raises(UsageError, match="prompts\\[1\\]: expected text, got int"):
        check_prompt(3, "prompts[1]")
    with pytest.raises(UsageError, match="prompt: expected text that is not blank"):
        check_prompt("")
