"""Memory that a stream takes at least."""

from __future__ import annotations

from wavecore import ops
from wavecore.cache import PoolSize
from wavecore.memory import check_memory
from wavecore.models.bundle import StreamModel
from wavecore.rounds import Rules

_FRAME_BYTES = 3 * (4 + 1)  # of a pixel: decoded as float32, and shown as uint8


def check_stream_memory(
    model: StreamModel, size: tuple[int, int], pages: PoolSize, machines: int = 1
) -> None:
    """Refuse a stream whose keys, values and frames cannot fit into memory.

    On a GPU the frames alone are counted: PyTorch says by itself when its memory is out.

    Parameters
    ----------
    model : StreamModel
    size : (width, height)
        Pixels.
    pages : PoolSize
        Pages of its pool.
    machines : int
        Over how many the layers may be spread.

    Raises
    ------
    UsageError
        The machine has not so much left.
    """
    width, height = size
    need = width * height * _FRAME_BYTES
    if model.device.type == "cpu":
        need += _pool_bytes(model, size, pages) // machines
    check_memory("size", need, f"{width}x{height} with keys and values of {pages.pages} latents")


def _pool_bytes(model: StreamModel, size: tuple[int, int], pages: PoolSize) -> int:
    dit, factor = model.dit, model.vae.spatial_factor
    config, element = dit.config, dit.patch_embedding.weight.element_size()
    tokens = dit.tokens_per_frame(size[1] // factor, size[0] // factor)
    values = tokens * config.heads * config.head_dim * element
    keys = ops.key_page_bytes(tokens, config.heads, config.head_dim) if dit.int8_keys else values
    return config.layers * (pages.pages * (keys + values) + pages.unroped_pages * values)


def fewest_pages(rules: Rules, latents: int | None) -> PoolSize:
    """Pages that a stream surely needs, known without a look at its rounds: of its anchors and of a chunk.

    Parameters
    ----------
    rules : Rules
    latents : int or None
        Of the stream; None of one without an end.
    """
    first = rules.first_chunk_frames or rules.chunk_frames
    held = min(first, rules.chunk_frames) + rules.anchor_chunks * rules.chunk_frames
    return PoolSize(held if latents is None else min(held, latents), 0)
