"""Three-axis rotary position embedding of Wan 2.1, at any temporal position."""

from __future__ import annotations

import torch
from torch import Tensor

THETA = 10000.0


def axis_sizes(head_dim: int) -> tuple[int, int, int]:
    """Split a head into its time, height and width parts (44 / 42 / 42 for 128).

    Wan 2.1, ``rope_params``: height and width take ``2 * (d // 6)`` each, time the rest.
    """
    spatial = 2 * (head_dim // 6)
    return head_dim - 2 * spatial, spatial, spatial


def _rotations(positions: Tensor, size: int) -> Tensor:
    """Cosine and sine, [*positions, size // 2, 2], of an axis."""
    exponent = torch.arange(0, size, 2, dtype=torch.float64, device=positions.device) / size
    angles = positions.to(torch.float64)[..., None] / THETA**exponent
    return torch.stack([angles.cos(), angles.sin()], dim=-1).float()


def rope_table(frame_positions: Tensor, height: int, width: int, head_dim: int) -> Tensor:
    """Cosine and sine of every rotation of a slot's tokens.

    Angles are computed in float64 for each position, so there is no table that could end
    (public code stops at 1,024 latent frames).

    Parameters
    ----------
    frame_positions : Tensor [s, f], integer or float
        Temporal index of each latent frame.
    height, width : int
        Tokens per column and per row of one latent frame.
    head_dim : int
        Size of one head; even.

    Returns
    -------
    Tensor [s, f * height * width, head_dim // 2, 2], float32
        Cosine and sine; tokens in (frame, row, column) order.
    """
    slots, frames = frame_positions.shape
    device = frame_positions.device
    time, rows, columns = axis_sizes(head_dim)
    axes = (
        _rotations(frame_positions, time)[:, :, None, None],
        _rotations(torch.arange(height, device=device), rows)[:, None],
        _rotations(torch.arange(width, device=device), columns),
    )
    shape = (slots, frames, height, width, -1, 2)
    return torch.cat([axis.expand(shape) for axis in axes], dim=-2).flatten(1, 3)


def apply_rope(x: Tensor, table: Tensor) -> Tensor:
    """Rotate adjacent pairs of ``x`` [s, t, h, d] by ``table`` [s, t, d // 2, 2]."""
    even, odd = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = table[:, :, None, :, 0], table[:, :, None, :, 1]
    return torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
