"""Sessions and the pipeline on a small random model: counts, versions, isolation, repeatability."""

import copy
import os
import pickle
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from wavecore.errors import InputError, UsageError, WavecoreError
from wavecore.loading import load
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.pipeline import Pipeline
from wavecore.trace import Trace

ROUNDS = ("wavefront", "sequential", "stream_batch")


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    dit = CausalWanDiT(
        DiTConfig(dim=32, heads=2, layers=2, ffn_dim=64, patch=(1, 4, 4), text_dim=16, prediction="x0")
    )
    modules = dit, SpritesVAE(width=16, blocks=1), SpritesTextEncoder(16, buckets=256, layers=1, heads=2)
    for module in modules:
        module.eval().requires_grad_(False)
    defaults = StreamDefaults(size=(64, 32), fps=16, shift=5.0, anchor_chunks=0, history=1, store_history=2)
    return Pipeline(StreamModel("tiny", *modules, defaults))


def frames_of(session):
    with session:
        return np.concatenate([group.frames for group in session])


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("num_frames", [1, 2, 5, 12, 13, 30])
def test_a_stream_has_the_frames_asked_for(pipe, rounds, num_frames):
    with pipe.session("a red ball", num_frames=num_frames, rounds=rounds, steps=2) as session:
        groups = list(session)
    assert sum(len(group.frames) for group in groups) == num_frames
    assert [group.index for group in groups] == list(range(len(groups)))
    assert groups[0].frames.shape == (1, 32, 64, 3) and groups[0].frames.dtype == np.uint8
    assert [group.pts for group in groups] == pytest.approx([0, *(1 / 16 + np.arange(len(groups) - 1) / 4)])
    assert groups[0].latent.shape == (16, 4, 8)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_seed_repeats_and_another_differs(pipe, rounds):
    def run(seed):
        return frames_of(pipe.session("a blue box", seed=seed, num_frames=25, rounds=rounds))

    assert np.array_equal(run(3), run(3))
    assert not np.array_equal(run(3), run(4))


def test_the_length_does_not_change_what_comes_first(pipe):
    short = frames_of(pipe.session("a blue box", num_frames=33))
    long = frames_of(pipe.session("a blue box", num_frames=80))
    assert np.array_equal(short, long[:33])


@pytest.mark.parametrize("rounds", ROUNDS)
def test_an_update_takes_effect_with_the_next_chunk(pipe, rounds):
    steps = 4

    def run(update):
        groups = []
        with pipe.session("a blue box", num_frames=141, rounds=rounds, steps=steps) as session:
            for group in session:
                groups.append(group)
                if update and len(groups) == 10:
                    assert session.update("a white star on water") == 1
        return groups

    plain, updated = run(False), run(True)
    versions = [group.version for group in updated]
    assert versions == sorted(versions) and set(versions) == {0, 1}
    first = versions.index(1)
    assert first % 3 == 0 and 10 < first <= 10 + 3 * (steps + 2)
    assert len(updated) == len(plain)
    for before, after in zip(plain[:first], updated[:first], strict=True):
        assert np.array_equal(before.frames, after.frames)
    assert not np.array_equal(plain[first].frames, updated[first].frames)


@pytest.mark.parametrize("transition", [0, 1.5, True, "a"])
def test_wrong_transitions_are_named(pipe, transition):
    message = f"transition: expected a whole number of at least 1, got {transition!r}"
    with pipe.session("a red ball", num_frames=5) as session, pytest.raises(UsageError, match=message):
        session.update("a blue box", transition)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_transition_takes_no_more_than_its_chunks_do(pipe, rounds):
    with pipe.session("a red ball", num_frames=25, rounds=rounds) as session:
        next(session)
        session.update("a blue box", transition=10**12)
        assert sum(len(group.frames) for group in session) == 24


def test_updates_come_from_any_thread(pipe):
    with pipe.session("a blue box", steps=1) as session:
        threads = [threading.Thread(target=session.update, args=(f"a red ball {i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for _ in range(6):
            next(session)
        for thread in threads:
            thread.join()
        assert session.update("a green cross") == 9
        versions = [next(session).version for _ in range(12)]
    assert versions[-1] == 9


def test_the_stream_goes_on_while_a_prompt_is_encoded(pipe):
    encoding, go_on = threading.Event(), threading.Event()

    def slow(prompts):
        encoding.set()
        assert go_on.wait(60)
        return pipe.model.encode_text(prompts)

    with pipe.session("a blue box", steps=1) as session:
        session.model = replace(pipe.model, encode_text=slow)
        thread = threading.Thread(target=session.update, args=("a red ball",))
        thread.start()
        assert encoding.wait(60)
        assert [next(session).version for _ in range(6)] == [0] * 6
        go_on.set()
        thread.join()
        assert [next(session).version for _ in range(9)][-1] == 1


@pytest.mark.parametrize("rounds", ROUNDS)
def test_sessions_do_not_touch_each_other(pipe, rounds):
    alone = [frames_of(pipe.session(text, num_frames=25, rounds=rounds)) for text in ("one", "two")]
    sessions = [pipe.session(text, num_frames=25, rounds=rounds) for text in ("one", "two")]
    by_turns = list(zip(*sessions, strict=True))
    mixed = [np.concatenate([pair[i].frames for pair in by_turns]) for i in range(2)]
    for a, b in zip(alone, mixed, strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("rounds", ROUNDS)
@pytest.mark.parametrize("count", [1, 2, 5, 12, 14, 83])
def test_restyling_gives_as_many_frames_as_it_takes(pipe, rounds, count):
    source = np.random.default_rng(0).integers(0, 256, (count, 32, 64, 3), dtype=np.uint8)
    frames = frames_of(pipe.restyle(iter(source), "a red ball", rounds=rounds, steps=2))
    assert frames.shape == source.shape


def test_images_are_restyled_as_arrays_are(pipe):
    source = np.random.default_rng(0).integers(0, 256, (5, 32, 64, 3), dtype=np.uint8)
    images = [Image.fromarray(frame) for frame in source]
    by_image, by_array = (frames_of(pipe.restyle(each, "a red ball", steps=2)) for each in (images, source))
    assert np.array_equal(by_image, by_array)


def test_restyling_depends_on_the_source_up_to_full_strength(pipe):
    generator = np.random.default_rng(0)
    sources = [generator.integers(0, 256, (13, 32, 64, 3), dtype=np.uint8) for _ in range(2)]

    def run(source, strength):
        return frames_of(pipe.restyle(source, "a red ball", strength=strength, steps=2))

    assert not np.array_equal(run(sources[0], 0.7), run(sources[1], 0.7))
    assert np.array_equal(run(sources[0], 1.0), run(sources[1], 1.0))


def test_an_endless_stream_keeps_no_past(pipe):
    for rounds in ROUNDS:
        with pipe.session("a red ball", rounds=rounds, steps=2) as session:
            sizes = []
            for index, _ in zip(range(120), session, strict=False):
                if index % 30 == 29:
                    used = session._cache.pool.free_list.used
                    sizes.append((used, len(session._handoff._waiting), len(session._of_chunk)))
        assert sizes[1] == sizes[2] == sizes[3], rounds


def test_closing_gives_every_page_back(pipe):
    session = pipe.session("a red ball")
    next(session)
    pool = session._cache.pool
    session.close()
    assert pool.free_list.used == 0
    with pytest.raises(StopIteration):
        next(session)
    with pytest.raises(UsageError, match="update: expected an open session, got a closed one"):
        session.update("a blue box")


def test_the_event_log_tells_the_run(pipe):
    trace = Trace()
    frames_of(pipe.session("a red ball", num_frames=25, steps=2, trace=trace))
    kinds = [event.kind for event in trace.events]
    assert kinds.count("admit") == 3 and kinds.count("ready") == 7
    assert kinds.count("round") == 4  # the last chunk is not stored, since nobody reads it
    assert kinds[:3] == ["session", "prompt", "text"]
    rounds = [event.data["slots"] for event in trace.events if event.kind == "round"]
    assert rounds[2] == {"2": 0, "1": 1, "0": 2}


@pytest.mark.parametrize("output_type", ["np", "pt", "pil", "latent"])
def test_the_one_shot_call(pipe, output_type):
    generator = torch.Generator().manual_seed(5)
    out = pipe(
        ["a red ball", "a blue box"], num_frames=9, generator=generator, output_type=output_type
    ).frames
    if output_type == "pil":
        assert len(out) == 2 and len(out[0]) == 9 and out[0][0].size == (64, 32)
    else:
        shapes = {"np": (2, 9, 32, 64, 3), "pt": (2, 9, 3, 32, 64), "latent": (2, 3, 16, 4, 8)}
        assert tuple(out.shape) == shapes[output_type]
    if output_type == "np":
        again = frames_of(pipe.session("a red ball", seed=5, num_frames=9))
        assert np.array_equal(np.rint(out[0] * 255), again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"steps": 0}, "steps: expected a whole number of at least 1, got 0"),
        ({"num_frames": 0}, "num_frames: expected a whole number of at least 1, got 0"),
        ({"seconds": -1.0}, "seconds: expected a finite number above 0, got -1.0"),
        ({"fps": 0}, "fps: expected a finite number above 0, got 0"),
        ({"size": (100, 32)}, "size: expected a width in multiples of 32"),
        ({"rounds": "spiral"}, "rounds: expected one of wavefront"),
        ({"placement": "moon"}, "placement: expected one of local"),
        ({"prompt": " "}, "prompt: expected text that is not blank"),
        ({"seed": 1.5}, "seed: expected a whole number, got 1.5"),
        ({"seconds": "1"}, "seconds: expected a finite number above 0, got '1'"),
        ({"fps": True}, "fps: expected a finite number above 0, got True"),
        ({"steps": 1001}, "steps: expected at most 1000, as in training, got 1001"),
        ({"fps": 1e300}, "fps: expected a number from 1e-05 to 2147483647, got 1e\\+300"),
        (
            {"size": (999_968, 999_968)},
            "size: expected what .* GiB of memory are enough for, got 999968x999968",
        ),
        ({"size": 128}, "size: expected a width and a height in pixels, got 128"),
        ({"size": "64x32"}, "size: expected a width and a height in pixels, got '64x32'"),
    ],
)
def test_wrong_arguments_are_named(pipe, arguments, message):
    with pytest.raises(UsageError, match=message):
        pipe.session(**{"prompt": "a red ball", **arguments})


@pytest.mark.parametrize(("name", "value"), [("prompt", None), ("prompt", 5), ("generator", 5)])
def test_the_one_shot_call_names_an_argument_of_a_wrong_type(pipe, name, value):
    with pytest.raises(UsageError, match=f"^{name}: expected a .*, got {value}$"):
        pipe(**{"prompt": "a red ball", name: value})


def test_the_one_shot_call_has_an_end(pipe):
    with pytest.raises(UsageError, match="num_frames: expected a whole number of at least 1, got None"):
        pipe("a red ball", num_frames=None)


@pytest.mark.parametrize("size", [{"height": 0}, {"width": 0}])
def test_the_one_shot_call_takes_no_size_of_zero(pipe, size):
    with pytest.raises(UsageError, match="size: expected a whole number of at least 1, got 0"):
        pipe("a red ball", num_frames=5, **size)


def test_a_forked_process_is_refused_instead_of_waited_for(pipe):
    def refused(threads):
        child = os.fork()
        if not child:
            torch.set_num_threads(threads)
            try:
                pipe.session("a red ball")
            except WavecoreError as error:
                os._exit(7 if "got a forked one" in str(error) else 1)
            except BaseException:
                os._exit(2)
            os._exit(0)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7

    assert refused(threads=2) and not refused(threads=1)


def test_a_pipeline_can_be_pickled(pipe):
    there = pickle.loads(pickle.dumps(pipe))
    expected, made = (frames_of(one.session("a blue box", num_frames=9)) for one in (pipe, there))
    assert np.array_equal(made, expected)


def test_wrong_sources_are_named(pipe):
    with pytest.raises(
        InputError, match=r"source: expected frames uint8 \[32, 64, 3\], got uint8 \[8, 8, 3\]"
    ):
        frames_of(pipe.restyle([np.zeros((8, 8, 3), np.uint8)], "a red ball"))
    with pytest.raises(InputError, match=r"source: expected frames uint8 \[32, 64, 3\], got int64 \[\]"):
        frames_of(pipe.restyle([3], "a red ball"))
    with pytest.raises(UsageError, match="strength"):
        pipe.restyle([], "a red ball", strength=0)


def test_unknown_models_are_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").mkdir()
    with pytest.raises(UsageError, match='model: expected "sprites", a path, or a hub name'):
        load("no-such-model")
    with pytest.raises(UsageError, match="device: expected one that works here, got moon"):
        load("sprites", device="moon")
    for dtype in (torch.float64, torch.int8, "bfloat16"):
        with pytest.raises(UsageError, match=rf"^dtype: expected torch.float32, .* got {dtype!r}$"):
            load("sprites", dtype=dtype)
    for model in (None, 5):
        with pytest.raises(UsageError, match=f"^model: expected .*, a path or a hub name, got {model}$"):
            load(model)
    for path in ("tests/none", "no-folder/sprites.safetensors", "../sprites"):
        with pytest.raises(UsageError, match=f"model: expected .* got '{path}'"):
            load(path)
    with pytest.raises(UsageError, match="did you mean sprites"):
        load("sprite")


@pytest.mark.parametrize("count", [1, 2, 5, 13, 14, 30])
def test_an_encoder_that_looks_ahead_loses_no_latent(count):
    from wavecore.models.taehv import TAEHV
    from wavecore.source import ChunkSource, to_pixels

    torch.manual_seed(0)
    vae = TAEHV().eval().requires_grad_(False)
    video = np.random.default_rng(0).integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    source = ChunkSource(iter(video), vae, (32, 32))
    chunks = []
    while source.prepare(3):
        chunks.append(source.take())
    latents = torch.cat(chunks, 1)
    real = 1 + -(-(count - 1) // 4)
    assert latents.shape[1] == 3 * -(-real // 3)
    padded = np.concatenate([video, np.repeat(video[-1:], 4 * (real - 1) + 1 - count, 0)])
    with torch.inference_mode():
        whole = vae.encode(to_pixels(padded))[0]
    torch.testing.assert_close(latents[:, :real], whole, atol=1e-5, rtol=0)


def test_a_default_device_of_the_process_is_not_where_tables_of_pages_are_made(pipe):
    def latents(session):
        with session:
            return torch.stack([group.latent for group in session])

    expected = latents(pipe.session("a red ball", num_frames=25))
    with torch.device("meta"):  # PyTorch's own encoder takes another, rounded way there
        found = latents(pipe.session("a red ball", num_frames=25))
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_model_runs_in_half_precision(pipe):
    dit, text = copy.deepcopy(pipe.model.dit), copy.deepcopy(pipe.model.encode_text)
    model = StreamModel("half", dit, copy.deepcopy(pipe.model.vae), text, pipe.model.defaults)
    half = Pipeline(model.to("cpu", torch.bfloat16))
    assert half.model.dit.head.head.weight.dtype == torch.bfloat16
    for session in (half.session("a red ball", num_frames=13), pipe.session("a red ball", num_frames=13)):
        assert frames_of(session).shape == (13, 32, 64, 3)
    source = np.random.default_rng(0).integers(0, 256, (9, 32, 64, 3), dtype=np.uint8)
    assert frames_of(half.restyle(source, "a red ball")).shape == source.shape


@pytest.mark.parametrize("rounds", ROUNDS)
def test_threads_share_the_groups_of_a_stream_out(pipe, rounds):
    expected = frames_of(pipe.session("a red ball", num_frames=81, rounds=rounds, steps=2))
    taken, failed = {}, []

    def take(session):
        try:
            for group in session:
                taken[group.index] = group.frames
        except Exception as error:
            failed.append(error)

    with pipe.session("a red ball", num_frames=81, rounds=rounds, steps=2) as session:
        threads = [threading.Thread(target=take, args=(session,)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not failed
    assert np.array_equal(np.concatenate([taken[index] for index in sorted(taken)]), expected)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_a_stream_that_another_thread_closes_ends(pipe, rounds):
    for after in range(1, 5):
        session = pipe.session("a red ball", rounds=rounds, steps=2)
        reached = threading.Event()

        def close(session=session, reached=reached):
            reached.wait()
            session.close()

        closing = threading.Thread(target=close)
        closing.start()
        for group in session:  # endless, but for the thread
            if group.index == after:
                reached.set()
        closing.join()
