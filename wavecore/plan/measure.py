"""This machine as a device to plan for: forward passes, decoder and copies of a model, timed here."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import cast

import torch

from wavecore.cache import PageView
from wavecore.models.bundle import StreamModel
from wavecore.models.stream import UnitDecoder
from wavecore.placement.decode import unit_seconds
from wavecore.plan.costs import Device, Model

_CHUNKS = (1, 6)  # context of the passes that are timed


@dataclass(frozen=True)
class Measured:
    """A model and a core of this machine.

    Attributes
    ----------
    model : Model
    device : Device
        One thread of this machine: the rates that give the measured times.
    units : list of float
        Seconds of each unit of the decoder, for a latent.
    """

    model: Model
    device: Device
    units: list[float]


def measure(model: StreamModel, size: tuple[int, int], seconds: float = 1.0) -> Measured:
    """Time a model on one thread of this machine.

    Parameters
    ----------
    model : StreamModel
        On the CPU.
    size : (width, height)
        Pixels.
    seconds : float
        For each forward pass that is timed.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measure(model, size, seconds)
    finally:
        torch.set_num_threads(threads)


def _measure(model: StreamModel, size: tuple[int, int], seconds: float) -> Measured:
    dit, defaults, vae = model.dit, model.defaults, cast(UnitDecoder, model.vae)
    factor, frames = model.vae.spatial_factor, defaults.chunk_frames
    height, width = size[1] // factor, size[0] // factor
    weight = dit.patch_embedding.weight
    described = Model(
        model.name,
        dit.config,
        sum(parameter.numel() for parameter in dit.parameters()),
        model.encode_text(["a ball"]).shape[1],
        weight.element_size(),
        frames,
        factor,
        model.vae.temporal_factor,
        sum(len(pickle.dumps(unit)) for unit in vae.decoder_units),
    )
    passes = [_timed(_forward(model, height, width, chunks), seconds) for chunks in _CHUNKS]
    per_chunk = max(1e-9, (passes[1] - passes[0]) / (_CHUNKS[1] - _CHUNKS[0]))
    fixed = max(1e-9, passes[0] - _CHUNKS[0] * per_chunk)
    units = unit_seconds(vae, (dit.config.in_channels, height, width))
    tokens, layers = described.tokens(size), dit.config.layers
    block = torch.empty(described.edge_bytes(tokens) // 4)
    copied = _timed(lambda: block.clone(), seconds / 10)
    pixels = size[0] * size[1] / (832 * 480)
    device = Device(
        name="this",
        linear=layers * described.linear_flops(tokens) / fixed,
        attention=layers * described.attention_flops(tokens, 1) / per_chunk,
        memory=4 * block.numel() / copied,
        passes=0,  # in the rate of matrix products, since they were timed together
        link=4 * block.numel() / copied,
        latency=1e-6,
        decode=3 * sum(units) / pixels,
        capacity=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (os.cpu_count() or 1),
    )
    return Measured(described, device, units)


def _forward(model: StreamModel, height: int, width: int, chunks: int) -> Callable[[], object]:
    """A pass of one chunk that reads `chunks` chunks, its own included."""
    dit, frames = model.dit, model.defaults.chunk_frames
    config, tokens = dit.config, dit.tokens_per_frame(height, width)
    dtype = dit.patch_embedding.weight.dtype
    shape = (frames * chunks, tokens, config.heads, config.head_dim)
    keys, values = ([torch.randn(shape).to(dtype) for _ in range(config.layers)] for _ in range(2))
    ids = torch.arange(frames * chunks, dtype=torch.int32)[None]
    view = PageView(keys, values, ids[:, :frames].clone(), ids, torch.full_like(ids, tokens))
    latents = torch.randn(1, config.in_channels, frames, height, width).to(dtype)
    timesteps = torch.full((1, frames), 500.0, dtype=torch.float64)
    positions = torch.arange(frames)[None]
    with torch.inference_mode():
        text = dit.encode_text(model.encode_text(["a ball"]))
    return lambda: dit.forward_paged(latents, timesteps, positions, text, view)


@torch.inference_mode()
def _timed(run: Callable[[], object], seconds: float) -> float:
    """Median time of a call."""
    run()
    times: list[float] = []
    until = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return median(times)
