"""Settings of a live stream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from wavecore.control.streaming.noise import NoiseSettings
from wavecore.control.streaming.sinks import SinkMode
from wavecore.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class StreamingSettings:
    """How a stream is restyled; what is None is the model's own.

    All but `noise` are settings of `stream_batch` rounds.

    Attributes
    ----------
    noise : NoiseSettings, optional
        Noise after the motion of the source; the same for every chunk when not given.
    sinks : "adaptive", "static" or "off", optional
        Chunks that stay in the context: replaced by what is unlike them, the first ones for ever, or none.
    sink_chunks : int, optional
        How many.
    sink_threshold : float
        Cosine below which an adaptive sink is replaced.
    sink_block : int, optional
        Layer after which hidden states are compared, in the last denoising pass of a chunk; those after the
        patch embedding of the clean latent when not given.
    chunk_frames, first_chunk_frames : int, optional
        Latent frames of a chunk, and of the first one.
    longest_chunk_frames : int, optional
        Latent frames of the longest chunk, where their length is chosen while the stream runs.
    history : int, optional
        Chunks before a chunk that it reads, besides the sinks.
    position_limit : int, optional
        Temporal positions stay below it.
    position_reset : "bounded" or "published"
        How; see `wavecore.rounds.StreamBatch`.
    """

    noise: NoiseSettings | None = None
    sinks: SinkMode | None = None
    sink_chunks: int | None = None
    sink_threshold: float = 0.2
    sink_block: int | None = None
    chunk_frames: int | None = None
    first_chunk_frames: int | None = None
    longest_chunk_frames: int | None = None
    history: int | None = None
    position_limit: int | None = None
    position_reset: Literal["bounded", "published"] = "bounded"

    def __post_init__(self) -> None:
        if self.sinks not in (None, "adaptive", "static", "off"):
            raise UsageError(f"sinks: expected adaptive, static or off, got {self.sinks!r}")
        if self.sinks in ("adaptive", "static") and self.sink_chunks == 0:
            raise UsageError(f"sink_chunks: expected at least 1 for {self.sinks} sinks, got 0")

    @property
    def of_rounds(self) -> dict[str, Any]:
        """Given parameters of the rounds, by their names there."""
        given = {
            "chunk_frames": self.chunk_frames,
            "first_chunk_frames": self.first_chunk_frames,
            "longest_chunk_frames": self.longest_chunk_frames,
            "history": self.history,
            "position_limit": self.position_limit,
            "anchor_chunks": 0 if self.sinks == "off" else self.sink_chunks,
        }
        chosen: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if self.position_limit is not None:
            chosen["position_reset"] = self.position_reset
        return chosen
