"""Timelines of a wave in each of two exchange modes, from real traces: `python bench/wave_timeline.py`.

Writes docs/images/wave_sync.png and wave_paged.png: N = 1 on two cores, over a modelled link that takes half
of a layer's time for an edge.
"""

from __future__ import annotations

import statistics
from pathlib import Path

import torch
from wave_streams import CORES, SIZE, model, replica_ticks, wave

from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import ReplicaOptions
from wavecore.placement.replicas import Replicas
from wavecore.plan.picture import draw, spans_of
from wavecore.trace import Trace

IMAGES = Path(__file__).parents[1] / "docs" / "images"
SHOWN = range(20, 25)  # rounds of full context


def main() -> None:
    """Draw both."""
    torch.set_num_threads(1)
    dit = model(1)
    latent = dit.config.in_channels, SIZE, SIZE
    edge = 2 * 3 * dit.tokens_per_frame(SIZE, SIZE) * dit.config.dim * 4
    with Nursery(dit) as nursery:
        with Replicas(dit, wave(1), latent, ReplicaOptions(cores=CORES), nursery=nursery) as replicas:
            tick = statistics.median(replica_ticks(replicas, dit, wave(1), 1.0))
        speed = edge / (0.5 * tick / dit.config.layers * 1e6)
        for mode in ("sync", "paged"):
            options = ReplicaOptions(mode=mode, cores=CORES, link_bytes_per_us=speed)  # type: ignore[arg-type]
            trace = Trace()
            with Replicas(dit, wave(1), latent, options, trace=trace, nursery=nursery) as replicas:
                ticks = replica_ticks(replicas, dit, wave(1), 0.5)
            title = f"{mode}: tick {statistics.median(ticks) * 1e3:.1f} ms"
            draw(spans_of(trace.events, SHOWN), IMAGES / f"wave_{mode}.png", title)
            print(title)


if __name__ == "__main__":
    main()
