"""What one forward pass needs to know of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class PageView:
    """Pages that the slots of one forward pass read and write.

    Attributes
    ----------
    k_pages, v_pages : sequence of Tensor [p, n, h, d]
        The pool, one tensor a layer.
    write_ids : Tensor int32 [s, f]
        Page that takes each latent frame of each slot.
    read_table : Tensor int32 [s, m]
        Pages that each slot reads, in attention order; -1 where the row is shorter.
    read_lengths : Tensor int32 [s, m]
        Valid tokens of each of them; 0 where the row is shorter.
    unroped_pages : sequence of Tensor [p, n, h, d], optional
        Pool of keys before rotation, for anchors that move in time.
    unroped_ids : Tensor int32 [s, f], optional
        Page of that pool for each latent frame; -1 where none is kept.
    """

    k_pages: Sequence[Tensor]
    v_pages: Sequence[Tensor]
    write_ids: Tensor
    read_table: Tensor
    read_lengths: Tensor
    unroped_pages: Sequence[Tensor] | None = None
    unroped_ids: Tensor | None = None
