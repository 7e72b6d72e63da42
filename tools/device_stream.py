"""End to end for the device report: warm streams of a model of Wan's shape with random weights."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import torch

from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import WAN_1_3B, CausalWanDiT, DiTConfig
from wavecore.models.int8 import quantize_dit
from wavecore.models.wan_vae import WanVAE, WanVAEConfig
from wavecore.pipeline import Pipeline


@dataclass(frozen=True)
class Workload:
    """Model, size of the frames, and seconds for filling the context and for the measurement."""

    dit: DiTConfig = WAN_1_3B
    vae: WanVAEConfig = field(default_factory=WanVAEConfig)
    size: tuple[int, int] = (832, 480)
    words: int = 512
    warm_up_seconds: float = 20.0
    seconds: float = 12.0


STREAMS = {  # rounds, int8 layers, int8 keys
    "wavefront": ("wavefront", False, False),
    "sequential": ("sequential", False, False),
    "wavefront, int8 layers": ("wavefront", True, False),
    "wavefront, int8 layers and keys": ("wavefront", True, True),
}


def model(work: Workload, int8_layers: bool, int8_keys: bool) -> StreamModel:
    """Random weights in bfloat16 on the device."""
    torch.manual_seed(0)
    with torch.device("cuda"):
        dit, vae = CausalWanDiT(work.dit), WanVAE(work.vae)
    for module in (dit, vae):
        module.eval().requires_grad_(False).to("cuda", torch.bfloat16)
    if int8_layers:
        quantize_dit(dit)
    dit.int8_keys = int8_keys
    features = torch.randn(1, work.words, work.dit.text_dim, device="cuda", dtype=torch.bfloat16)
    return StreamModel(
        "random",
        dit,
        vae,
        lambda prompts: features.expand(len(prompts), -1, -1),
        StreamDefaults(size=work.size, fps=16.0, shift=5.0),
    )


def frames_per_second(name: str, work: Workload, profile: bool = False) -> dict[str, Any]:
    """Frames of a stream whose context is full; with `profile`, what the device did in its time instead."""
    rounds, *int8 = STREAMS[name]
    torch.cuda.reset_peak_memory_stats()
    with Pipeline(model(work, *int8)).session("random weights", rounds=rounds, steps=4) as session:  # type: ignore[arg-type]
        began = time.monotonic()
        for group in session:  # the context holds 21 latent frames at most
            if group.index >= 48 or time.monotonic() - began > work.warm_up_seconds:
                break
        torch.cuda.synchronize()
        if profile:
            return {"kernels": kernels(session)}
        frames, began, times = 0, time.monotonic(), []
        while time.monotonic() - began < work.seconds:
            frames += len(next(session).frames)
            times.append(time.monotonic() - began)
        torch.cuda.synchronize()
        seconds = time.monotonic() - began
    return {
        "frames_per_second": frames / seconds,
        "frames": frames,
        "warm_groups": group.index + 1,
        "longest_wait_seconds": max(b - a for a, b in zip([0.0, *times], times, strict=False)),
        "peak_gigabytes": torch.cuda.max_memory_allocated() / 2**30,
    }


def kernels(session: Any, groups: int = 6, most: int = 15) -> list[dict[str, Any]]:
    """The kernels that took most of the device's time while `groups` frame groups were made."""
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        for _ in range(groups):
            next(session)
        torch.cuda.synchronize()
    found = [event for event in profiler.key_averages() if event.self_device_time_total > 0]
    total = sum(event.self_device_time_total for event in found)
    found.sort(key=lambda event: -event.self_device_time_total)
    return [
        {
            "kernel": event.key[:80],
            "calls": event.count,
            "milliseconds": event.self_device_time_total / 1e3,
            "share": event.self_device_time_total / total,
        }
        for event in found[:most]
    ]
