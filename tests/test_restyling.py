"""Restyling a live stream: noise, sinks, positions, transitions, rounds in which nothing enters."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from wavecore.cache import pages_needed
from wavecore.control.streaming import NoiseSettings, SinkSet, StreamingSettings
from wavecore.errors import UsageError
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.sprites_text import SpritesTextEncoder
from wavecore.models.sprites_vae import SpritesVAE
from wavecore.pipeline import Pipeline
from wavecore.restyling import motion_noise
from wavecore.trace import Trace

WIDTH, HEIGHT = 64, 32


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    dit = CausalWanDiT(
        DiTConfig(dim=32, heads=2, layers=2, ffn_dim=64, patch=(1, 4, 4), text_dim=16, prediction="x0")
    )
    modules = dit, SpritesVAE(width=16, blocks=1), SpritesTextEncoder(16, buckets=256, layers=1, heads=2)
    for module in modules:
        module.eval().requires_grad_(False)
    defaults = StreamDefaults(size=(WIDTH, HEIGHT), fps=16, shift=5.0, anchor_chunks=0, history=1)
    return Pipeline(StreamModel("tiny", *modules, defaults))


def clip(count, moving=True, seed=0):
    generator = np.random.default_rng(seed)
    shape = (count if moving else 1, HEIGHT, WIDTH, 3)
    return np.broadcast_to(generator.integers(0, 256, shape, dtype=np.uint8), (count, *shape[1:]))


def run(pipe, frames, streaming=None, steps=2, rounds="stream_batch", **more):
    trace = Trace(limit=10**6)
    session = pipe.restyle(
        iter(frames), "a red ball", rounds=rounds, steps=steps, streaming=streaming, trace=trace, **more
    )
    with session:
        groups = list(session)
    return np.concatenate([group.frames for group in groups]), groups, trace.events


LIVE = {"chunk_frames": 1, "first_chunk_frames": 1, "history": 2}


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_81_frames_in_81_frames_out(pipe, steps, first):
    source = clip(81)
    settings = StreamingSettings(
        chunk_frames=1, first_chunk_frames=first, sinks="adaptive", sink_chunks=2, noise=NoiseSettings()
    )
    frames, groups, _ = run(pipe, source, settings, steps)
    assert len(frames) == 81
    assert [group.index for group in groups] == list(range(21))


def kinds(events, kind):
    return [event.data for event in events if event.kind == kind]


def test_motion_lowers_the_noise_and_a_still_source_does_not(pipe):
    for mode in ("paper", "compatible"):
        noise = NoiseSettings(mode=mode)
        for moving in (False, True):
            _, _, events = run(pipe, clip(21, moving), StreamingSettings(noise=noise, **LIVE))
            chosen = kinds(events, "noise")
            assert [entry["chunk"] for entry in chosen] == list(range(6))
            assert chosen[0]["strength"] == 0.8
            if moving:
                assert chosen[-1]["strength"] == pytest.approx(0.7, abs=1e-3)
            elif mode == "compatible":
                assert {(entry["strength"], entry["timestep"]) for entry in chosen} == {(0.8, 700)}


def test_noise_after_motion_has_the_constants_of_the_model():
    defaults = StreamDefaults(
        size=(64, 32), fps=16, shift=5.0, strength=0.75, noise_span=0.5, noise_scale=0.3
    )
    assert motion_noise(defaults) == NoiseSettings(highest=0.75, span=0.5, scale=0.3)
    assert motion_noise(defaults, highest=0.5) == NoiseSettings(highest=0.5, span=0.25, scale=0.3)
    assert motion_noise(defaults, highest=0.125, window=2) == NoiseSettings(
        highest=0.125, span=0.0, scale=0.3, window=2
    )
    assert motion_noise(defaults, span=0.25).span == 0.25
    published = NoiseSettings()
    unstated = motion_noise(StreamDefaults(size=(64, 32), fps=16, shift=5.0, strength=published.highest))
    assert (unstated.span, unstated.scale) == (pytest.approx(published.span), published.scale)


def test_the_compatible_mode_moves_the_first_level_only(pipe):
    noise = NoiseSettings(mode="compatible")
    session = pipe.restyle(
        iter(clip(81)), "a red ball", rounds="stream_batch", streaming=StreamingSettings(noise=noise, **LIVE)
    )
    with session:
        for _ in range(6):
            next(session)
        first, *rest = [session._handoff.level(session._rounds.entered - 1, stage) for stage in range(4)]
        assert first.timestep == pytest.approx(600, abs=1)
        assert rest == list(session._handoff.levels[1:4])


def test_the_paper_mode_moves_every_level_and_they_keep_falling(pipe):
    noise = NoiseSettings(highest=0.9, span=0.5)
    session = pipe.restyle(
        iter(clip(81)), "a red ball", rounds="wavefront", streaming=StreamingSettings(noise=noise)
    )
    with session:
        for _ in range(12):
            next(session)
        sigmas = [session._handoff.level(session._rounds.entered - 1, stage).sigma for stage in range(4)]
        assert sigmas == sorted(sigmas, reverse=True)
        assert sigmas[0] == pytest.approx(0.4, abs=0.01)
        assert len(session._handoff._own_levels) <= 6, "levels of chunks that are through are forgotten"


def test_adaptive_sinks_change_once_for_one_different_chunk(pipe):
    """Near-identical chunks replace none; noise alone must not look like content."""
    still = np.concatenate([clip(81, moving=False), clip(40, moving=False, seed=1)])
    settings = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_threshold=-1.0, **LIVE)
    static = StreamingSettings(sinks="static", sink_chunks=2, **LIVE)
    frames, _, events = run(pipe, still, settings)
    assert not kinds(events, "sink")
    assert np.array_equal(frames, run(pipe, still, static)[0]), "sinks that never change are static ones"
    always = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_threshold=1.0, **LIVE)
    frames, _, events = run(pipe, still, always)
    assert len(kinds(events, "sink")) > 10 and len(frames) == 121


@pytest.mark.parametrize("block", [None, 0, 1])
@pytest.mark.parametrize("steps", [1, 2])
def test_sinks_are_compared_after_the_chosen_block(pipe, block, steps):
    """By mean hidden states of the chunk's last pass, which are those of the dense model."""
    offered = []
    settings = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_block=block, **LIVE)
    session = pipe.restyle(
        iter(clip(41)), "a red ball", rounds="stream_batch", steps=steps, streaming=settings
    )
    offer = session._restyling.sinks.offer
    session._restyling.sinks.offer = lambda chunk, vector: offered.append(vector) or offer(chunk, vector)
    states = []
    attend = pipe.model.dit.attend

    def watched(state, layer, q, pages):
        attend(state, layer, q, pages)
        if layer == block:
            states.append(state.hidden.clone())

    pipe.model.dit.attend = watched
    try:
        with session:
            groups = list(session)
    finally:
        del pipe.model.dit.attend
    assert len(offered) == len(groups) == 11
    if block is None:
        embedded = [pipe.model.dit.embed_patches(g.latent[None, :, None]).mean((0, 1)) for g in groups]
    else:  # the cleanest slot of a round is the first of its batch
        embedded = [hidden[0].mean(0) for hidden in states[steps - 1 :]]
    torch.testing.assert_close(torch.tensor(offered), torch.stack(embedded), atol=1e-6, rtol=1e-5)


def test_a_block_that_is_none_is_named(pipe):
    settings = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_block=2, **LIVE)
    with pytest.raises(UsageError, match="sink_block: expected a layer from 0 to 1, got 2"):
        pipe.restyle(iter(clip(5)), "a", rounds="stream_batch", streaming=settings)


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_sinks_that_change_hold_no_more_pages_than_planned(pipe, steps):
    settings = StreamingSettings(
        sinks="adaptive", sink_chunks=3, sink_threshold=1.0, position_limit=20, **LIVE
    )
    session = pipe.restyle(
        iter(clip(161)), "a red ball", rounds="stream_batch", steps=steps, streaming=settings
    )
    needed = pages_needed(session._rules)
    with session:
        list(session)
        pool = session._cache.pool
        assert pool.free_list.capacity == needed.pages
        assert pool.free_list.peak <= needed.pages
    assert pool.free_list.used == pool.unroped_free_list.used == 0


def test_a_new_prompt_refreshes_the_sinks(pipe):
    trace = Trace()
    settings = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_threshold=-1.0, **LIVE)
    session = pipe.restyle(
        iter(clip(81)), "a red ball", rounds="stream_batch", steps=2, streaming=settings, trace=trace
    )
    versions = []
    with session:
        for group in session:
            versions.append(group.version)
            if group.index == 8:
                session.update("a blue star")
    assert len(versions) == 21, "no frame is lost"
    first = versions.index(1)
    assert [(entry["chunk"], entry["replaced"]) for entry in kinds(trace.events, "sink")] == [
        (first, entry) for first, entry in zip((first, first + 1), (0, 1), strict=True)
    ] or {entry["replaced"] for entry in kinds(trace.events, "sink")} == {0, 1}


@pytest.mark.parametrize("rounds", ["wavefront", "sequential", "stream_batch"])
def test_a_transition_goes_over_its_chunks_and_encodes_each_condition_once(pipe, rounds):
    session = pipe.restyle(iter(clip(161)), "a red ball", rounds=rounds, steps=1)
    contexts, versions = [], []
    with session:
        encoded = []
        encode = session._placement.encode_text
        session._placement.encode_text = lambda features: encoded.append(features) or encode(features)
        for group in session:
            versions.append(group.version)
            if group.index == 6:
                session.update("a blue star", transition=4)
            contexts += [
                prompt.context
                for prompt in session._of_chunk.values()
                if all(prompt.context is not known for known in contexts)
            ]
    assert len(versions) == 41, "no frame is lost"
    assert len(encoded) == 4
    distances = [float((e - encoded[0]).norm()) for e in encoded]
    assert distances[0] == 0, "the new prompt"
    assert distances[1:] == sorted(distances[1:], reverse=True) and distances[3] > 0, "those on the way to it"
    assert len(contexts) == 5, "the old one, three between, the new one"


def test_bounded_positions_change_no_output(pipe):
    """400 latents across many resets against a stream whose positions go on."""
    source = clip(401)
    free = StreamingSettings(sinks="static", sink_chunks=2, **LIVE)
    bounded = StreamingSettings(sinks="static", sink_chunks=2, position_limit=12, **LIVE)
    _, a, _ = run(pipe, source, free)
    _, b, _ = run(pipe, source, bounded)
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one.latent, other.latent, atol=1e-5, rtol=0)


def test_the_published_reset_does_change_the_output(pipe):
    """Cached keys keep their old positions there, 43 and 44 frames away in the public setting."""
    source = clip(101)
    lengths = {"chunk_frames": 1, "first_chunk_frames": 1, "history": 3, "sinks": "off"}
    published = StreamingSettings(position_limit=12, position_reset="published", **lengths)
    _, a, _ = run(pipe, source, StreamingSettings(**lengths), steps=1)
    _, b, _ = run(pipe, source, published, steps=1)
    apart = [float((x.latent - y.latent).abs().max()) for x, y in zip(a, b, strict=True)]
    assert max(apart[:12]) < 1e-5 < min(apart[12:14])


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("rounds", ["wavefront", "stream_batch", "sequential"])
def test_rounds_without_entry_change_no_output(pipe, rounds, steps):
    """A source that stalls lets older chunks go on; what they read stays the same in a stream batch."""
    source, generator = clip(161), np.random.default_rng(1)
    hold_at = iter(generator.random(10_000) < 0.5)
    plain, _, _ = run(pipe, source, None, steps, rounds)
    held, groups, events = run(pipe, source, None, steps, rounds, hold=lambda at_work: bool(next(hold_at)))
    assert held.shape == plain.shape
    assert [group.index for group in groups] == list(range(41))
    if rounds != "wavefront":  # whose chunks read those at work beside them
        assert np.abs(held.astype(int) - plain).max() <= 1
    assert any(
        not event.data["slots"] or "0" not in event.data["slots"] for event in events if event.kind == "round"
    )


def test_an_endless_stream_of_holds_needs_no_memory(pipe):
    session = pipe.restyle(
        iter(clip(4001)), "a red ball", rounds="stream_batch", steps=2, hold=lambda at_work: turn()
    )
    state = iter(range(10**6))

    def turn():
        return next(state) % 2 == 0

    with session:
        for _ in session:
            assert len(session._rounds.rules.branches) < 20


def test_settings_that_do_not_fit_the_rounds_are_named(pipe):
    for streaming, name in (
        (StreamingSettings(sinks="adaptive"), "sinks"),
        (StreamingSettings(position_limit=30), "position_limit"),
        (StreamingSettings(chunk_frames=1), "chunk_frames"),
    ):
        with pytest.raises(UsageError, match=f"^{name}: expected rounds stream_batch"):
            pipe.restyle(iter(clip(5)), "a red ball", streaming=streaming)
    with pytest.raises(UsageError, match="sink_chunks"):
        pipe.restyle(iter(clip(5)), "a", rounds="stream_batch", streaming=StreamingSettings(sinks="adaptive"))
    with pytest.raises(UsageError, match="sinks"):
        StreamingSettings(sinks="some")


def test_two_streams_of_one_model_do_not_share_sinks(pipe):
    """The public code keeps ring state on the model: a second session has duplicates in it."""
    settings = StreamingSettings(sinks="adaptive", sink_chunks=2, sink_threshold=1.0, **LIVE)
    first = run(pipe, clip(81), settings)[0]
    again = run(pipe, clip(81), settings)[0]
    assert np.array_equal(first, again)


def test_the_set_of_a_session_is_its_own():
    assert SinkSet(2).chunks is not SinkSet(2).chunks


@pytest.mark.parametrize(
    ("block", "where"),
    [pytest.param(0, {"decode_on": 1}, marks=pytest.mark.slow), (1, {"encode_on": 1, "decode_on": 1})],
)
def test_a_ring_of_two_gives_the_frames_of_one_process(pipe, block, where):
    """Sinks too, compared after a layer of either rank; and wherever frames are encoded and decoded."""
    settings = StreamingSettings(
        sinks="adaptive",
        sink_chunks=2,
        sink_threshold=1.0,
        sink_block=block,
        position_limit=20,
        noise=NoiseSettings(),
        **LIVE,
    )
    source = clip(41)
    alone = run_with_lag(pipe, source, settings, 2)
    around, groups, _ = run(pipe, source, settings, placement="layers", devices=2, **where)
    assert [group.index for group in groups] == list(range(11))
    assert np.array_equal(around, alone)


def run_with_lag(pipe, source, settings, lag):
    """Restyle here, with the rounds of a ring."""
    ringed = Pipeline(pipe.model)
    ringed.rules = lambda *arguments: replace(pipe.rules(*arguments), lag=lag)
    return run(ringed, source, settings)[0]


class HostReads(TorchDispatchMode):
    """Counts operations that read values of tensors on the host."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        self.count += name in (
            "_local_scalar_dense",
            "item",
            "nonzero",
            "is_nonzero",
            "equal",
            "masked_select",
        )
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("steps", [1, 2])
def test_a_steady_micro_step_reads_nothing_back(pipe, steps):
    """The public code reads the ring's state back 211 times a step at two steps and 30 layers."""
    settings = StreamingSettings(sinks="static", sink_chunks=2, position_limit=16, **LIVE)
    session = pipe.restyle(
        iter(clip(81)), "a red ball", rounds="stream_batch", steps=steps, streaming=settings
    )
    with session:
        for _ in range(8):
            next(session)
        placement, reads = session._placement, []
        submit = placement.submit

        def counted(*arguments):
            with HostReads() as mode:
                submit(*arguments)
            reads.append(mode.count)

        placement.submit = counted
        for _ in range(6):
            next(session)
    with HostReads() as mode:
        torch.ones(1).item()
    assert mode.count == 1, "the counter counts"
    assert reads == [0] * len(reads) and len(reads) >= 6
