"""What a type checker knows of the public names: checked by mypy (`tools/test.sh`), never run."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import assert_type

import wavecore as wc
from wavecore.interactive.session import SpeculativeSession, Ticket
from wavecore.models import TAEHV, CausalWanDiT, WanVAE
from wavecore.pipeline import Pipeline
from wavecore.rounds import Rounds
from wavecore.session import FrameGroup, Session


def stream(prompt: str) -> list[NDArray[np.uint8]]:
    pipe = wc.load("sprites")
    assert_type(pipe, Pipeline)
    frames = []
    with pipe.session(prompt, seconds=1) as session:
        assert_type(session.update("a blue star"), int)
        for group in session:
            assert_type(group, FrameGroup)
            frames.append(group.frames)
    return frames


def speculate(pipe: Pipeline) -> None:
    with pipe.session("a red ball", control="speculative") as session:
        assert_type(session, SpeculativeSession)
        assert_type(session.update("a blue star"), Ticket)


def restyle(pipe: Pipeline) -> None:
    clip = wc.media.VideoReader("clip.mp4", size=pipe.size)
    assert_type(pipe.restyle(clip, "a ball"), Session)


def models() -> None:
    assert_type(wc.models.load_dit("folder"), CausalWanDiT)
    assert_type(wc.models.load_vae("folder"), WanVAE | TAEHV)


def operations(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return wc.ops.int8_linear(wc.ops.gelu(x), wc.ops.pack_int8(weight))


def plain_data() -> None:
    assert_type(wc.rounds.wavefront(steps=4, chunks=8), Rounds)
    measure: Callable[[NDArray[np.uint8], NDArray[np.uint8]], float] = wc.metrics.warp_error
    assert_type(measure(np.zeros((2, 8, 8, 3), np.uint8), np.zeros((2, 8, 8, 3), np.uint8)), float)
    assert_type(wc.control.partition([[1.0, 1.0]]), tuple[int, ...])
