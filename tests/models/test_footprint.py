"""Memory that streams take at least, beside what they do take."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.models import tiny_stream_model

from wavecore import memory
from wavecore.cache import PagePool, PoolSize, pages_needed
from wavecore.errors import UsageError
from wavecore.interactive.speculation import Speculation
from wavecore.models.footprint import check_stream_memory, fewest_pages
from wavecore.pipeline import Pipeline
from wavecore.rounds import Sequential, StreamBatch, Wavefront


@pytest.fixture(scope="module")
def model():
    return tiny_stream_model()


def tensor_bytes(pool):
    tensors = (*pool.k_pages, *pool.v_pages, *pool.unroped_pages)
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@pytest.mark.parametrize("int8_keys", [False, True], ids=["float32", "int8 keys"])
def test_pages_are_counted_as_the_pool_has_them(model, monkeypatch, int8_keys):
    monkeypatch.setattr(model.dit, "int8_keys", int8_keys)
    config, size, pages = model.dit.config, (64, 32), PoolSize(7, 0 if int8_keys else 3)
    tokens = model.dit.tokens_per_frame(32 // model.vae.spatial_factor, 64 // model.vae.spatial_factor)
    pool = PagePool(config.layers, pages, tokens, config.heads, config.head_dim, int8_keys=int8_keys)
    frame = 64 * 32 * 3 * (torch.float32.itemsize + 1)
    monkeypatch.setattr(memory, "available_bytes", lambda: tensor_bytes(pool) + frame)
    check_stream_memory(model, size, pages)
    monkeypatch.setattr(memory, "available_bytes", lambda: tensor_bytes(pool) + frame - 1)
    with pytest.raises(UsageError, match="got 64x32 with keys and values of 7 latents"):
        check_stream_memory(model, size, pages)
    check_stream_memory(model, size, pages, machines=2)


@given(
    kind=st.sampled_from([Sequential, StreamBatch, Wavefront]),
    steps=st.integers(1, 5),
    frames=st.tuples(st.integers(1, 4), st.integers(1, 4) | st.none()),
    anchors=st.integers(0, 4),
    latents=st.integers(1, 40) | st.none(),
)
def test_a_stream_never_needs_fewer_pages(kind, steps, frames, anchors, latents):
    chunk, first = frames
    rules = kind(steps=steps, chunk_frames=chunk, first_chunk_frames=first, anchor_chunks=anchors, history=2)
    needed = pages_needed(rules, None if latents is None else rules.chunks(latents))
    assert fewest_pages(rules, latents).pages <= needed.pages


@pytest.mark.parametrize(
    "options",
    [
        {"num_frames": 400},
        {"placement": "replicas"},
        {"placement": "layers", "rounds": "stream_batch"},
        {"placement": "sequence"},
        {"control": "speculative"},
        {"control": "speculative", "placement": "layers"},
        {"control": "speculative", "speculation": Speculation(latents=10**12)},
    ],
    ids=["local", "replicas", "layers", "sequence", "speculative", "speculative-layers", "latents"],
)
def test_a_stream_without_room_is_refused_wherever_it_would_run(model, monkeypatch, options):
    monkeypatch.setattr(memory, "available_bytes", lambda: 32_000)
    with pytest.raises(UsageError, match=r"size: expected what .* memory are enough for, got 64x32"):
        Pipeline(model).session("a red ball", size=(64, 32), **options)
    with pytest.raises(UsageError, match="size: expected"):
        Pipeline(model).restyle([], "a red ball", size=(64, 32))
