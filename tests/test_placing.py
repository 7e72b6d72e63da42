"""Where the work of a session runs: the same frames everywhere, and one line for what cannot be."""

import os
import signal

import numpy as np
import psutil
import pytest
import torch
from support.models import tiny_stream_model

from wavecore.control.streaming import NoiseSettings, StreamingSettings
from wavecore.errors import UsageError, WavecoreError
from wavecore.pipeline import Pipeline
from wavecore.placement.decode import DecodeOptions
from wavecore.placement.nursery import Nursery
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.placement.sequence import SequenceOptions, SequencePlacement
from wavecore.session import Session
from wavecore.trace import Trace

FRAMES = 37


@pytest.fixture(scope="module")
def pipe():
    return Pipeline(tiny_stream_model())


def made(session):
    """Frames and latents of a session."""
    with session:
        groups = list(session)
    assert [group.index for group in groups] == list(range(len(groups)))
    return np.concatenate([group.frames for group in groups]), torch.stack([g.latent for g in groups])


def session(pipe, **placing):
    return pipe.session("a red ball", seed=3, steps=2, num_frames=FRAMES, **placing)


@pytest.fixture(scope="module")
def local(pipe):
    return made(session(pipe))


@pytest.fixture(scope="module")
def nursery(pipe):
    """Loads once; what starts processes takes them from here."""
    with Nursery(pipe.model.dit) as nursery:
        yield nursery


def test_processes_that_decode_give_the_same_frames(pipe, local, nursery):
    trace = Trace()
    frames, latents = made(session(pipe, decoders=1, trace=trace))
    assert np.array_equal(frames, local[0]) and torch.equal(latents, local[1])
    assert {event.track for event in trace.events if event.kind == "decode"} == {"decoders"}
    rules, options = pipe.rules("wavefront", 2), ReplicaOptions(ranks=2)
    with Replicas(pipe.model.dit, rules, (16, 4, 8), options, nursery=nursery) as replicas:
        frames, latents = made(session(pipe, placement="replicas", replicas=replicas, decoders=1))
        with pytest.raises(UsageError, match="devices: expected 2, as replicas have, got 3"):
            session(pipe, placement="replicas", replicas=replicas, devices=3)
    assert np.array_equal(frames, local[0]) and torch.equal(latents, local[1])


@pytest.mark.parametrize("split", ["ulysses", "ring"])
@pytest.mark.parametrize("rounds", ["wavefront", "sequential"])
def test_a_sequence_gives_the_latents_of_one_device(pipe, nursery, split, rounds):
    expected = made(session(pipe, rounds=rounds))
    sequence = SequencePlacement(pipe.model.dit, SequenceOptions(ranks=2, mode=split), nursery)
    frames, latents = made(
        Session(
            pipe.model,
            "a red ball",
            pipe.rules(rounds, 2),
            pipe.levels(2),
            3,
            pipe.size,
            16,
            FRAMES,
            place=sequence,
        )
    )
    assert (latents - expected[1]).abs().max() <= 1e-5 * max(1.0, float(expected[1].abs().max()))
    assert np.abs(frames.astype(int) - expected[0]).max() <= 1


@pytest.mark.parametrize("noise", [NoiseSettings(), pytest.param(None, marks=pytest.mark.slow)])
def test_a_video_is_restyled_over_replicas_as_here(pipe, noise):
    generator = np.random.default_rng(0)
    clip = generator.integers(0, 256, (FRAMES, 32, 64, 3), dtype=np.uint8)
    clip[20:] = clip[20]  # so that motion, and with it the noise, changes
    streaming = None if noise is None else StreamingSettings(noise=noise)

    def restyled(placement, **more):
        settings = {"steps": 2, "placement": placement, "streaming": streaming, **more}
        return made(pipe.restyle(iter(clip), "a red ball", **settings))

    trace = Trace()
    here = restyled("local")
    elsewhere = restyled("replicas", devices=3, decoders=1, trace=trace)
    assert len({event.track for event in trace.events if event.track.startswith("rank ")}) == 3
    assert {event.track for event in trace.events if event.kind == "decode"} == {"decoders"}
    assert len(here[0]) == FRAMES
    assert np.array_equal(here[0], elsewhere[0]) and torch.equal(here[1], elsewhere[1])


def test_a_decoder_that_is_killed_is_named(pipe):
    with pipe.session("a red ball", steps=2, decoders=1) as endless:
        next(endless)
        os.kill(endless._decoding._pipeline._processes[0].pid, signal.SIGKILL)
        with pytest.raises(WavecoreError, match=r"decode worker 0, process \d+: it was ended by signal 9"):
            for _ in endless:
                pass


def test_a_rank_of_a_sequence_that_is_killed_is_named(pipe):
    with pipe.session("a red ball", steps=2, placement="sequence") as endless:
        next(endless)
        os.kill(endless._placement._pids[1], signal.SIGKILL)
        with pytest.raises(
            WavecoreError, match=r"rank 1 of the sequence, process \d+: it was ended by SIGKILL"
        ):
            for _ in endless:
                pass


@pytest.mark.parametrize(
    ("placing", "message"),
    [
        ({"placement": "moon"}, "placement: expected one of local, replicas, layers, sequence, got 'moon'"),
        (
            {"placement": "replicas", "devices": 4},
            "devices: expected 1 to 3 for 2 steps, a process a stage and one",
        ),
        ({"placement": "sequence", "devices": 0}, "devices: expected a whole number of at least 1, got 0"),
        ({"placement": "sequence", "devices": 3}, "devices: expected a number that divides 2 heads, got 3"),
        (
            {"placement": "sequence", "devices": 3, "split": "ring"},
            "devices: expected a number that divides 2 tokens, got 3",
        ),
        ({"placement": "sequence", "split": "spiral"}, "mode: expected ulysses or ring, got 'spiral'"),
        ({"devices": 2}, "devices: expected 1 with placement local, got 2"),
        ({"decoders": -1}, "decoders: expected a whole number of at least 0, got -1"),
        ({"split": "ring"}, "split: expected none with placement local, got ring"),
        ({"placement": "replicas", "split": "ulysses"}, "split: expected none with placement replicas"),
        ({"decoders": 2}, "decoders: expected at most 1, one a unit of the model's decoder, got 2"),
        (
            {"decoders": DecodeOptions(), "control": "speculative"},
            "decoders: expected none under control spec",
        ),
        (
            {"placement": "sequence", "control": "speculative"},
            "placement: expected local, replicas or layers under control speculative, got sequence",
        ),
        (
            {"placement": "replicas", "control": "speculative", "rounds": "sequential"},
            "rounds: expected wavefront for replicas, got sequential",
        ),
        (
            {"placement": "replicas", "control": "speculative", "devices": 4},
            "devices: expected 1 to 3 for 2 steps, a process a stage and one",
        ),
        (
            {"placement": "layers", "control": "speculative", "devices": 9},
            "devices: expected 1 to 2 ranks for 2 layers, got 9",
        ),
        ({"decoders": "2"}, "decoders: expected a whole number of at least 0, got '2'"),
        ({"placement": "layers"}, "rounds: expected stream_batch with placement layers, got wavefront"),
        ({"devices": 2, "control": "speculative"}, "devices: expected 1 with placement local, got 2"),
    ],
)
def test_what_cannot_be(pipe, placing, message):
    with pytest.raises(UsageError, match=message):
        session(pipe, **placing)


def test_a_video_is_restyled_on_one_device_here(pipe):
    with pytest.raises(UsageError, match="devices: expected 1 with placement local, got 2"):
        pipe.restyle(iter([]), "a red ball", devices=2)


def test_a_live_source_is_not_for_replicas(pipe):
    with pytest.raises(UsageError, match="placement: expected local or layers for a live or shared stream"):
        pipe.restyle(iter([]), "a red ball", placement="replicas", hold=lambda _: False)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"prompt": " "}, "prompt: expected text that is not blank"),
        ({"size": (100, 32)}, "size: expected a width in multiples of 32"),
        ({"fps": 0}, "fps: expected a finite number above 0, got 0"),
        ({"frames": 5}, "frames: expected an iterable of frames, got int"),
    ],
)
@pytest.mark.parametrize("placement", ["layers", "replicas"])
def test_wrong_arguments_are_found_before_a_process_starts(pipe, monkeypatch, placement, arguments, message):
    def refuse(*_, **__):
        pytest.fail("a process was started")

    monkeypatch.setattr("subprocess.Popen", refuse)
    rounds = "stream_batch" if placement == "layers" else "wavefront"
    given = {"frames": [], "prompt": "a star", "placement": placement, "rounds": rounds, **arguments}
    with pytest.raises(UsageError, match=message):
        pipe.restyle(**given)
    if "frames" not in arguments:
        del given["frames"]
        with pytest.raises(UsageError, match=message):
            pipe.session(**given)


@pytest.mark.parametrize(("placement", "rounds"), [("layers", "stream_batch"), ("sequence", "wavefront")])
def test_a_session_that_does_not_begin_leaves_no_process(pipe, placement, rounds):
    def children():
        return {process.pid for process in psutil.Process().children()}

    before = children()
    options = {"placement": placement, "rounds": rounds, "decoders": 99}
    with pytest.raises(UsageError, match="decoders: expected at most 1") as caught:
        pipe.session("a star", **options)
    assert caught and children() <= before, "also while the error is held"
    if placement == "layers":
        with pytest.raises(UsageError, match="decoders: expected at most 1") as caught:
            pipe.restyle([], "a star", **options)
        assert caught and children() <= before


def test_a_session_that_does_not_begin_gives_its_place_back(pipe, monkeypatch):
    closed = []

    class Counted:
        probe = None

        def open(self, *_):
            return self

        def encode_text(self, features):
            raise WavecoreError("no text today")

        def close(self):
            closed.append(self)

    with pytest.raises(WavecoreError, match="no text today"):
        Session(
            pipe.model, "a", pipe.rules("wavefront", 2), pipe.levels(2), 0, pipe.size, 16, place=Counted()
        )
    assert len(closed) == 1
