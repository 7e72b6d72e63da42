"""Models and devices as numbers: operations and bytes of a forward pass, and how fast a device does them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from wavecore.arguments import pixels
from wavecore.errors import UsageError
from wavecore.models.dit_config import WAN_1_3B, WAN_14B, DiTConfig
from wavecore.plan.simulate import Cost

GIB = 2**30

# Places at which the Wan 2.1 decoder can be cut, and one.
DECODER_UNITS = 22


@dataclass(frozen=True)
class Model:
    """What the planner knows of a model.

    Attributes
    ----------
    name : str
    dit : DiTConfig
    parameters : float
        Of the transformer.
    text_tokens : int
    element_bytes : int
        Of weights, keys and values.
    chunk_frames : int
        Latent frames of a chunk.
    spatial, temporal : int
        Pixels of a latent pixel along a side, and frames of a latent.
    decoder_bytes : float
        Weights of the decoder, and what its stream carries at 832x480.
    """

    name: str
    dit: DiTConfig
    parameters: float
    text_tokens: int = 512
    element_bytes: int = 2
    chunk_frames: int = 3
    spatial: int = 8
    temporal: int = 4
    decoder_bytes: float = 0.3e9 + 1.9e9

    def tokens(self, size: tuple[int, int]) -> int:
        """Tokens of a chunk of `size` = (width, height) pixels."""
        across, down = self.spatial * self.dit.patch[2], self.spatial * self.dit.patch[1]
        width, height = pixels(size, across, down)
        return self.chunk_frames * (width // across) * (height // down)

    def linear_flops(self, tokens: int) -> float:
        """Operations of a layer besides self-attention, for the tokens of a chunk."""
        d, f = self.dit.dim, self.dit.ffn_dim
        return tokens * (8 * d * d + 4 * d * d + 4 * d * f + 4 * self.text_tokens * d)

    def attention_flops(self, tokens: int, chunks: int) -> float:
        """Operations of a layer's self-attention, a chunk that reads `chunks` chunks."""
        return 4 * tokens * tokens * chunks * self.dit.dim

    def edge_bytes(self, tokens: int) -> int:
        """Keys and values of a chunk in one layer: 2 tokens heads head_dim element size."""
        return 2 * tokens * self.dit.heads * self.dit.head_dim * self.element_bytes

    def page_bytes(self, tokens: int) -> int:
        """The same in every layer."""
        return self.dit.layers * self.edge_bytes(tokens)


@dataclass(frozen=True)
class Device:
    """Measured speeds of a device.

    Attributes
    ----------
    name : str
    linear : float
        Operations a second of large matrix products.
    attention : float
        The same of self-attention.
    memory : float
        Bytes a second of its memory.
    passes : float
        Element-wise passes over the tokens (read or written in full) of a layer, in units of its width.
    link : float
        Bytes a second to another device, one way.
    latency : float
        Seconds of an exchange of all devices besides its transfers.
    decode : float
        Seconds that the decoder takes for a chunk of three latents at 832x480.
    capacity : float
        Bytes of its memory.
    """

    name: str
    linear: float
    attention: float
    memory: float
    passes: float
    link: float
    latency: float
    decode: float
    capacity: float

    def scaled(self, factor: float) -> Device:
        """A device that computes as fast as this one divided by `factor`; links stay."""
        return replace(
            self,
            linear=self.linear / factor,
            attention=self.attention / factor,
            passes=self.passes * factor,
        )


# Measured with the public code on one H200 at 832x480: forwards of the 1.3B model with PyTorch's attention
# take 33.7 + 15 K ms for K chunks of context, with matrix products at the 790 T a second that a plain one
# reaches there; FlashAttention 3's rate is fitted to the tick of exchange `sync` at 1.3B. 343 GB/s is a
# measured copy between two devices, 4.3 TB/s one in memory. The latency of an exchange of all is assumed, not
# fitted. Decoding is what is left of the published 19.06 frames/s on one device after five forwards.
H200 = Device(
    name="h200",
    linear=790e12,
    attention=692e12,
    memory=4.3e12,
    passes=183,
    link=343e9,
    latency=50e-6,
    decode=0.256,
    capacity=139 * GIB,
)
DEVICES: Mapping[str, Device] = {
    "h200": H200,
    "h200-sdpa": replace(H200, name="h200-sdpa", attention=269e12),
}
MODELS: Mapping[str, Model] = {
    "wan-1.3b": Model("wan-1.3b", WAN_1_3B, 1_418_996_800),
    "wan-14b": Model("wan-14b", WAN_14B, 14_288_491_584),
}


@dataclass(frozen=True)
class LinearCost:
    """Forward passes of one model at one size: seconds = fixed + per_chunk * chunks read.

    Attributes
    ----------
    layers : int
    fixed, per_chunk : float
        Of the whole pass.
    published : float
        Share of a layer's fixed part after which its keys and values are published.
    """

    layers: int
    fixed: float
    per_chunk: float
    published: float = 0.15

    def __call__(self, stage: int, chunks: int) -> Cost:
        """Cost of a pass that reads `chunks` chunks, its own included."""
        fixed = self.fixed / self.layers
        return Cost(
            self.layers,
            self.published * fixed,
            self.per_chunk * chunks / self.layers,
            (1 - self.published) * fixed,
        )

    def seconds(self, chunks: int) -> float:
        """Of a whole pass."""
        return self.fixed + self.per_chunk * chunks

    def scaled(self, factor: float) -> LinearCost:
        """The same with every time multiplied."""
        return replace(self, fixed=self.fixed * factor, per_chunk=self.per_chunk * factor)


def forward_cost(model: Model, device: Device, size: tuple[int, int]) -> LinearCost:
    """Forward passes of a model on a device, at `size` = (width, height) pixels."""
    tokens, layers, dim = model.tokens(size), model.dit.layers, model.dit.dim
    products = model.linear_flops(tokens) / device.linear
    elements = device.passes * tokens * dim * model.element_bytes / device.memory
    return LinearCost(
        layers,
        layers * (products + elements),
        layers * model.attention_flops(tokens, 1) / device.attention,
    )


def decode_seconds(model: Model, device: Device, size: tuple[int, int]) -> float:
    """The decoder's time for a chunk: that at 832x480 by the number of pixels."""
    return device.decode * size[0] * size[1] / (832 * 480) * model.chunk_frames / 3


def parse_devices(text: str) -> tuple[int, Device | None]:
    """Read "8xh200" or "8"; no device for "2xthis", which has to be measured.

    Raises
    ------
    UsageError
        Another form, or no such device.
    """
    match = re.fullmatch(r"(\d{1,5})(?:\s*x\s*([\w-]+))?", text.strip())
    count = int(match[1]) if match else 0
    name = (match[2] if match else None) or "h200"
    if not count or name not in (*DEVICES, "this"):
        known = ", ".join((*DEVICES, "this"))
        raise UsageError(f"--devices: expected a number and a device such as 8xh200 ({known}), got {text!r}")
    return count, DEVICES.get(name)
