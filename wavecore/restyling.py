"""What a live source adds to a session: noise after its motion, sinks after what it shows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from wavecore.control.streaming import (
    BlockScheduler,
    NoiseController,
    NoiseSettings,
    SinkSet,
    StreamingSettings,
)
from wavecore.errors import UsageError
from wavecore.models.bundle import StreamDefaults, StreamModel
from wavecore.models.dit import CausalWanDiT
from wavecore.placement import Handoff
from wavecore.rounds import Key, NoiseLevel, Rounds, Rules, StreamBatch, nearest_sigma
from wavecore.source import ChunkSource
from wavecore.trace import Trace

if TYPE_CHECKING:
    from wavecore.placement.layers import Ring


class Restyling:
    """Policies of one stream that restyles.

    Parameters
    ----------
    schedule : callable (share of noise) -> sequence of NoiseLevel
        The levels of a chunk that begins with that share of noise.
    noise : NoiseController, optional
        Every chunk begins with the same noise when not given.
    sinks : SinkSet, optional
        Sinks stay as they are when not given.
    shift : float
        Timestep shift of the model, for the compatible mode of the noise.
    sink_block : int, optional
        Layer after which hidden states are compared for the sinks; see `StreamingSettings`.
    """

    def __init__(
        self,
        schedule: Callable[[float], Sequence[NoiseLevel]],
        noise: NoiseController | None,
        sinks: SinkSet | None,
        shift: float,
        sink_block: int | None = None,
    ) -> None:
        self.noise = noise
        self.sinks = sinks
        self.sink_block = None if sinks is None else sink_block
        self._schedule = schedule
        self._shift = shift
        self._last: Tensor | None = None  # latent before the next chunk

    @property
    def on_pixels(self) -> bool:
        """Whether the source has to measure its frames."""
        return self.noise is not None and self.noise.settings.mode == "compatible"

    def enter(self, handoff: Handoff, chunk: int, source: ChunkSource, trace: Trace) -> None:
        """Start the chunk that the source has at hand, at the noise its motion asks for."""
        differences = source.pixel_differences
        latents = source.take()
        if self.noise is None:
            handoff.enter(chunk, latents)
            return
        if self.noise.settings.mode == "compatible":
            if chunk:  # the public code leaves the first one as it is
                self.noise.update(differences)
            told = self.noise.timestep
            first, later = NoiseLevel(told, nearest_sigma(told, self._shift)), handoff.levels[1:]
        else:
            self.noise.update(self._latent_differences(latents))
            first = NoiseLevel(self.noise.timestep, self.noise.strength)
            later = self._schedule(self.noise.strength)[1:]
        trace.record("noise", chunk=chunk, strength=self.noise.strength, timestep=first.timestep)
        handoff.enter(chunk, latents, self.noise.strength, (first, *later))

    def _latent_differences(self, latents: Tensor) -> list[float]:
        """RMS difference of each latent of [c, f, h, w] to the one before it, where there is one."""
        joined = latents if self._last is None else torch.cat((self._last, latents), 1)
        self._last = latents[:, -1:]
        differences: list[float] = joined.diff(dim=1).float().square().mean((0, 2, 3)).sqrt().tolist()
        return differences

    # -- sinks ---------------------------------------------------------------------------

    def prompt_changed(self) -> None:
        """Let chunks of the new prompt take the place of the sinks."""
        if self.sinks is not None:
            self.sinks.refresh()

    def completed(
        self,
        chunk: int,
        latents: Tensor,
        dit: CausalWanDiT,
        rounds: Rounds,
        trace: Trace,
        hidden: Tensor | None = None,
    ) -> tuple[Key, ...]:
        """Decide whether a complete chunk [c, f, h, w] becomes a sink.

        `hidden` [D] is its mean hidden state after `sink_block`, in its last denoising pass.

        Returns
        -------
        tuple of Key
            What the cache can forget.
        """
        if self.sinks is None or not isinstance(rounds.rules, StreamBatch):
            return ()
        vector = embedding(dit, latents) if hidden is None else hidden.tolist()
        change = self.sinks.offer(chunk, vector)
        if change is None or change.replaced is None:
            return ()
        trace.record("sink", chunk=chunk, replaced=change.replaced, similarity=change.similarity)
        rounds.rules, orphans = rounds.rules.replace_sinks(self.sinks.chunks, rounds.index)
        return orphans


def motion_noise(defaults: StreamDefaults, **changes: Any) -> NoiseSettings:
    """Noise after motion with the constants of a model; `changes` as of `NoiseSettings`.

    With another `highest` full motion still leads to the model's lowest share of noise.
    """
    highest = changes.get("highest", defaults.strength)
    span = max(0.0, highest - (defaults.strength - defaults.noise_span))
    return NoiseSettings(**({"highest": highest, "span": span, "scale": defaults.noise_scale} | changes))


@torch.inference_mode()
def embedding(dit: CausalWanDiT, latents: Tensor) -> Sequence[float]:
    """Mean hidden state of a chunk [c, f, h, w] after the patch embedding.

    One copy to the host for each chunk, beside that of its frames.
    """
    weight = dit.patch_embedding.weight
    hidden: list[float] = dit.embed_patches(latents[None].to(weight.dtype)).mean((0, 1)).tolist()
    return hidden


def streaming_rules(rules: Rules, settings: StreamingSettings) -> tuple[Rules, SinkSet | None]:
    """Rules under settings of a live stream, and the sinks where those may change."""
    wanted = settings.of_rounds
    if not wanted and settings.sinks is None:
        return rules, None
    if not isinstance(rules, StreamBatch):
        name = next(iter(wanted), "sinks").replace("anchor_chunks", "sinks")
        raise UsageError(f"{name}: expected rounds stream_batch, got {rules.kind}")
    if settings.chunk_frames is not None and settings.history is None:
        # The same latents of context in chunks of another length.
        wanted["history"] = -(-rules.history * rules.chunk_frames // settings.chunk_frames)
    adaptive = settings.sinks == "adaptive"
    changed = replace(rules, **wanted, moving_sinks=adaptive)
    if settings.sinks in ("adaptive", "static") and not changed.anchor_chunks:
        raise UsageError(f"sink_chunks: expected at least 1 for {settings.sinks} sinks, got none")
    return changed, SinkSet(changed.anchor_chunks, settings.sink_threshold) if adaptive else None


def start_ring(
    model: StreamModel,
    rules: Rules,
    ranks: int,
    trace: Trace | None,
    encode_on: int = 0,
    decode_on: int = 0,
) -> tuple[Rules, Ring]:
    """Rules for a ring of `ranks` processes, and that ring, for one stream."""
    from wavecore.placement.layers import Ring

    if not isinstance(rules, StreamBatch):
        raise UsageError(f"rounds: expected stream_batch with placement layers, got {rules.kind}")
    layers = model.dit.config.layers
    ring = Ring(
        model.dit,
        ranks,
        scheduler=BlockScheduler(layers, ranks) if 1 < ranks <= layers else None,
        for_one_stream=True,
        trace=trace,
        vae=model.vae if encode_on or decode_on else None,
        encode_on=encode_on,
        decode_on=decode_on,
    )
    return replace(rules, lag=ranks), ring
