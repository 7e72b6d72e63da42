"""Waves over processes for the device report: ranks that map each other's pages, and a decoder."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

import wavecore
from wavecore.placement.decode import DecodeOptions
from wavecore.placement.replicas import ReplicaOptions


def replicas_agree(devices: Sequence[str]) -> dict[str, Any]:
    """Largest difference of a pixel between a stream over a rank for each of `devices` and one on the first.

    The decoder runs in a process of its own, on the last one. Both streams round sums differently, since one
    batches its slots.
    """
    pipe = wavecore.load("sprites", device=devices[0])
    elsewhere = {
        "placement": "replicas",
        "replicas": ReplicaOptions(devices=devices, timeout=120),
        "decoders": DecodeOptions(devices=devices[-1:]),
    }
    clips = []
    for placing in ({}, elsewhere):
        with pipe.session("a red ball rolling left", steps=2, **placing) as session:  # type: ignore[arg-type]
            clips.append(np.concatenate([group.frames for group in itertools.islice(session, 16)]))
    error = int(np.abs(clips[0].astype(int) - clips[1]).max())
    return {"error": error, "bound": 2, "passed": error <= 2}
