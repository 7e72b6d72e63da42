"""The main job with the shipped weights, as a newcomer runs it: files in, files out."""

import json
from pathlib import Path

import numpy as np
import pytest

import wavecore as wc
from wavecore.cli import run
from wavecore.media import VideoReader, read_video
from wavecore.sprites.readback import read_clip
from wavecore.trace import read_events
from wavecore.train.evaluation import Setting, codec_psnr, evaluate, prompt_accuracy, switch_response

ROOT = Path(__file__).resolve().parents[1]
CLIP = ROOT / "examples" / "dog.mp4"


@pytest.fixture(scope="module")
def pipe():
    return wc.load("sprites")


def test_a_prompt_schedule_becomes_a_video(tmp_path, capsys):
    out, sheet, log = tmp_path / "clip.mp4", tmp_path / "clip.png", tmp_path / "clip.jsonl"
    schedule = ROOT / "examples" / "prompts.yaml"
    arguments = ["generate", "--prompts", str(schedule), "--seconds", "12", "--output-path", str(out)]
    assert run([*arguments, "--contact-sheet", str(sheet), "--events", str(log), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == 192
    video = read_video(out)
    assert video.shape == (192, 128, 128, 3) and VideoReader(out).fps == 16
    assert sheet.stat().st_size > 1000
    shown = [event for event in read_events(log) if event.kind == "display"]
    assert {event.data["version"] for event in shown} == {0, 1, 2}
    assert sum(event.data["frames"] for event in shown) == 192
    backgrounds = [read_clip(video[at : at + 1]).background for at in (40, 120, 190)]
    assert backgrounds == ["grass", "night", "bricks"]


@pytest.mark.parametrize("size", ["128x128", "224x128"])
@pytest.mark.parametrize("rounds", ["wavefront", "stream_batch"])
def test_a_real_clip_is_restyled_frame_for_frame(tmp_path, capsys, size, rounds):
    out = tmp_path / "dog.mp4"
    arguments = ["restyle", str(CLIP), "a white ball over water", "--size", size, "--rounds", rounds]
    assert run([*arguments, "--output-path", str(out), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 81
    width, height = map(int, size.split("x"))
    assert read_video(out).shape == (81, height, width, 3)
    assert VideoReader(out).fps == 16


def test_the_same_seed_makes_the_same_file(tmp_path):
    paths = [tmp_path / name for name in ("a.safetensors", "b.safetensors")]
    for path in paths:
        flags = ["--num-frames", "21", "--output-type", "latent", "--seed", "4", "--output-path", str(path)]
        assert run(["generate", "a blue box", *flags]) == 0
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_the_vae_reaches_30_db(pipe):
    assert codec_psnr(pipe.model.vae, count=6) >= 30


def test_held_out_prompts_are_followed(pipe):
    rates = prompt_accuracy(pipe, Setting(seed=100), count=8)
    assert rates["colour"] >= 85 and rates["background"] >= 85 and rates["present"] >= 85, rates


def test_a_prompt_update_is_seen_soon_and_no_frame_is_lost(pipe):
    response = switch_response(pipe, Setting(seed=100), count=4)
    assert response["intact"] == 100
    assert response["colour_within_bar"] == 100, response


@pytest.mark.slow
def test_every_bar_of_the_evaluation(pipe):
    result = evaluate(pipe, Setting())
    print(json.dumps(result, indent=1))
    prompts, stream = result["prompts_held_out"], result["stream_60s"]
    assert prompts["colour"] >= 95 and prompts["shape"] >= 85 and prompts["direction"] >= 90
    assert result["switch"]["within_bar"] >= 95 and result["switch"]["intact"] == 100
    for name in ("colour", "shape", "direction"):
        assert stream[f"last_{name}"] >= stream[f"first_{name}"] - 5
    assert stream["drift"] <= 1
    assert result["restyle"]["correlation"] >= 0.9 and result["restyle"]["colour"] >= 90
    assert result["codec"]["psnr"] >= 30


def test_free_text_of_any_kind_makes_a_video(pipe):
    for prompt in ("🎈 over 草", "شمس حمراء", "word " * 20_000, "zxqv plugh"):
        with pipe.session(prompt, num_frames=5) as session:
            frames = np.concatenate([group.frames for group in session])
        assert frames.shape == (5, 128, 128, 3)
