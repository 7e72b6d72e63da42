"""What one forward pass needs to know of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from wavecore.cache.keys import quantize_keys, quantized_keys
from wavecore.ops import QuantizedKeyPages


@dataclass(frozen=True)
class PageView:
    """Pages that the slots of one forward pass read and write.

    Attributes
    ----------
    k_pages, v_pages : sequence of Tensor [p, n, h, d]
        The pool, one tensor a layer; keys as `wavecore.cache.PagePool` holds them.
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
    key_staging : Tensor [p, n, h, d], optional
        Where keys are held in int8: pages that take them before.
    """

    k_pages: Sequence[Tensor]
    v_pages: Sequence[Tensor]
    write_ids: Tensor
    read_table: Tensor
    read_lengths: Tensor
    unroped_pages: Sequence[Tensor] | None = None
    unroped_ids: Tensor | None = None
    key_staging: Tensor | None = None

    def written_keys(self, layer: int) -> Tensor:
        """Pages [p, n, h, d] that take the keys of a layer; `seal_keys` follows."""
        return self.k_pages[layer] if self.key_staging is None else self.key_staging

    def seal_keys(self, layer: int) -> None:
        """Quantise the keys of a layer that were written, where they are held in int8."""
        if self.key_staging is not None:
            quantize_keys(self.k_pages[layer], self.key_staging, self.write_ids)

    def read_keys(self, layer: int) -> Tensor | QuantizedKeyPages:
        """Keys of a layer, for attention."""
        memory = self.k_pages[layer]
        return memory if self.key_staging is None else quantized_keys(memory, self.key_staging)
