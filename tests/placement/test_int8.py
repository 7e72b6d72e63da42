"""A model with int8 layers over processes gives what it gives here."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import wavecore
from wavecore.errors import UsageError
from wavecore.models.int8 import quantize_dit
from wavecore.models.int8_linear import Int8Linear
from wavecore.pipeline import Pipeline
from wavecore.placement.layers.messages import Layer
from wavecore.placement.layers.shard import Shard
from wavecore.placement.replicas import ReplicaOptions


@pytest.fixture(scope="module")
def pipe() -> Pipeline:
    pipe = wavecore.load("sprites")
    quantize_dit(pipe.model.dit)
    return pipe


def frames(pipe: Pipeline, **options: Any) -> np.ndarray[Any, Any]:
    with pipe.session("a red ball", seed=1, steps=2, num_frames=25, size=(32, 64), **options) as session:
        return np.concatenate([group.frames for group in session])


@pytest.mark.parametrize(
    ("rounds", "options"),
    [
        ("wavefront", {"placement": "replicas", "replicas": ReplicaOptions(ranks=2, timeout=60)}),
        ("stream_batch", {"placement": "layers", "devices": 2}),
    ],
    ids=["replicas", "layers"],
)
def test_over_processes(pipe: Pipeline, rounds: Any, options: dict[str, Any]) -> None:
    assert np.array_equal(frames(pipe, rounds=rounds, **options), frames(pipe, rounds=rounds))


def test_over_a_sequence(pipe: Pipeline) -> None:
    """Its sums are in another order, and where one lies between two integers, that shows in a frame."""
    expected, actual = frames(pipe).astype(int), frames(pipe, placement="sequence", devices=2)
    assert np.abs(actual - expected).mean() <= 1


def test_a_layer_that_moves(pipe: Pipeline) -> None:
    """Its weights come to a model that was made without them, of plain layers."""
    dit = pipe.model.dit
    shard = Shard(Shard.empty(dit.config), 2, 2)
    state = dit.layer(2).state_dict()
    with torch.inference_mode():
        shard.take(Layer(2, list(state)), list(state.values()))
    block = shard.dit.layer(2)
    assert isinstance(block.ffn[0], Int8Linear) and block.ffn[0].data.dtype == torch.int8
    assert all(torch.equal(value, state[name]) for name, value in block.state_dict().items())


def test_loaded_so(pipe: Pipeline) -> None:
    loaded = wavecore.load("sprites", quantization="int8")
    assert np.array_equal(frames(loaded), frames(pipe))
    with pytest.raises(UsageError, match=r"^quantization: expected .int8. or None, got .int4.$"):
        wavecore.load("sprites", quantization="int4")  # type: ignore[arg-type]
