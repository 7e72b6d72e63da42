"""Sizes of the causal Wan DiT."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from wavecore.errors import UsageError


@dataclass(frozen=True)
class DiTConfig:
    """Sizes of a causal Wan DiT; the defaults are Wan 2.1 1.3B.

    Attributes
    ----------
    dim : int
        Width of a token.
    heads : int
        Attention heads; `dim` is an even multiple of them.
    layers : int
        Transformer layers.
    ffn_dim : int
        Hidden width of the feed-forward.
    in_channels, out_channels : int
        Channels of a latent, and of what is predicted.
    patch : (1, height, width)
        Latent pixels of a token.
    text_dim : int
        Width of the text features.
    frequency_dim : int
        Width of the sinusoid of a timestep.
    eps : float
        Of every norm.
    prediction : "velocity" or "x0"
        What the head was trained to give. `CausalWanDiT.forward` returns velocity either way.
    """

    dim: int = 1536
    heads: int = 12
    layers: int = 30
    ffn_dim: int = 8960
    in_channels: int = 16
    out_channels: int = 16
    patch: tuple[int, int, int] = (1, 2, 2)
    text_dim: int = 4096
    frequency_dim: int = 256
    eps: float = 1e-6
    prediction: Literal["velocity", "x0"] = "velocity"

    def __post_init__(self) -> None:
        if self.dim % self.heads or (self.dim // self.heads) % 2:
            raise UsageError(
                f"dim: expected an even multiple of heads, got dim {self.dim} with {self.heads} heads"
            )
        if self.patch[0] != 1:
            raise UsageError(f"patch: expected a temporal size of 1, got {self.patch}")
        if self.prediction not in ("velocity", "x0"):
            raise UsageError(f'prediction: expected "velocity" or "x0", got {self.prediction!r}')

    @property
    def head_dim(self) -> int:
        """Size of one attention head."""
        return self.dim // self.heads


WAN_1_3B = DiTConfig()
WAN_14B = DiTConfig(dim=5120, heads=40, layers=40, ffn_dim=13824)
