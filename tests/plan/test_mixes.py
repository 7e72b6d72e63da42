"""Mixes that the planner finds, run: stages that share a rank, and parts of the decoder beside stages."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.models import tiny_stream_model

from wavecore.models.taehv import TAEHV, TAEHVConfig
from wavecore.pipeline import Pipeline
from wavecore.placement.decode import DecodeOptions
from wavecore.placement.replicas import ReplicaOptions
from wavecore.plan import plans
from wavecore.plan.costs import DEVICES, MODELS, decode_seconds

STEPS = 4


@pytest.fixture(scope="module")
def pipe():
    torch.manual_seed(0)
    vae = TAEHV(TAEHVConfig(encoder_width=8, decoder_widths=(16, 12, 8, 6))).eval().requires_grad_(False)
    return Pipeline(replace(tiny_stream_model(), vae=vae))


def made(pipe, **placing):
    with pipe.session(
        "a red ball", seed=3, steps=STEPS, num_frames=29, rounds="wavefront", **placing
    ) as session:
        groups = list(session)
    return np.concatenate([group.frames for group in groups]), torch.stack([g.latent for g in groups])


@pytest.mark.parametrize(
    ("model", "devices", "name"),
    [
        ("wan-1.3b", 8, "wave 4+1+3 shared 1"),
        ("wan-1.3b", 4, "wave 02|1s|3+1 shared 3"),
        pytest.param("wan-14b", 2, "wave in turn 2+0 shared 2", marks=pytest.mark.slow),
    ],
)
def test_the_best_wave_gives_the_frames_of_one_device(pipe, model, devices, name):
    found = plans(MODELS[model], DEVICES["h200"], devices, STEPS)
    best = next(plan for plan in found if plan.result is not None)
    assert best.name == name
    there = sorted(os.sched_getaffinity(0))
    cores = [there[device % len(there)] for device in range(len(best.assignments))]
    parts = [(done, core) for done, core in zip(best.assignments, cores, strict=True) if done.decode]
    parts.sort(key=lambda part: bool(part[0].stages))  # free devices decode first
    whole = decode_seconds(MODELS[model], DEVICES["h200"], (832, 480))  # of a chunk
    frames, latents = made(
        pipe,
        placement="replicas",
        replicas=ReplicaOptions(ranks=best.ranks, cores=cores),
        decoders=DecodeOptions(
            workers=len(parts),
            cores=[core for _, core in parts],
            # The core of a shared part is busy with its stage for as large a share of the decoding as there.
            busy=[(done.busy - done.decode * whole) / whole * 1e-3 for done, _ in parts],
        ),
    )
    expected = made(pipe)
    assert np.array_equal(frames, expected[0])
    assert torch.equal(latents, expected[1])
