"""Memory of the pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property

import torch

from wavecore import ops
from wavecore.cache.table import FreePages, PoolSize


class PagePool:
    """Keys and values of every layer in pages of one latent frame, shared by any number of sessions.

    Parameters
    ----------
    layers, heads, head_dim : int
        Sizes of the model.
    pages : int or PoolSize
        Pages, and un-roped ones with `PoolSize`; see `pages_needed`.
    page_tokens : int
        Tokens of one latent frame; any positive number.
    dtype, device
        Of the pages.
    unroped_pages : int
        Pages for keys before rotation, which anchors that move need.
    poison : bool
        Fill free pages with NaN, so that a stale read shows in the result (for tests).
    place : callable, optional
        Shape and dtype to a tensor, where the memory is somebody else's; its contents stay. Called for the
        keys of every layer, then for the values, then for the un-roped keys.
    int8_keys : bool
        Hold keys in int8.

    Attributes
    ----------
    k_pages : list of Tensor [p, n, h, d], or with `int8_keys` uint8 [p, bytes]
        One per layer; in int8 as `wavecore.ops.key_pages_in` reads them.
    v_pages : list of Tensor [p, n, h, d]
        One per layer.
    unroped_pages : list of Tensor [p2, n, h, d]
        One per layer.
    """

    def __init__(
        self,
        layers: int,
        pages: int | PoolSize,
        page_tokens: int,
        heads: int,
        head_dim: int,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        unroped_pages: int = 0,
        poison: bool = False,
        place: Callable[[tuple[int, ...], torch.dtype], torch.Tensor] | None = None,
        int8_keys: bool = False,
    ) -> None:
        if isinstance(pages, PoolSize):
            pages, unroped_pages = pages
        self.page_tokens = page_tokens
        self.device = torch.device(device)

        def tensors(*shape: int, dtype: torch.dtype = dtype) -> list[torch.Tensor]:
            if place is not None:
                return [place(shape, dtype) for _ in range(layers)]
            fill = _poison(dtype) if poison else 0
            return [torch.full(shape, fill, dtype=dtype, device=device) for _ in range(layers)]

        page = page_tokens, heads, head_dim
        self._int8_keys = int8_keys
        if int8_keys:
            self.k_pages = tensors(pages, ops.key_page_bytes(*page), dtype=torch.uint8)
        else:
            self.k_pages = tensors(pages, *page)
        self.v_pages = tensors(pages, *page)
        self.unroped_pages = tensors(unroped_pages, *page)
        self.free_list = FreePages("pages", pages, self._poison if poison else None)
        self.unroped_free_list = FreePages(
            "un-roped pages", unroped_pages, self._poison_unroped if poison else None
        )

    @cached_property
    def key_staging(self) -> torch.Tensor | None:
        """Pages [p, n, h, d] that take the keys of a layer before they are quantised, at their own ids.

        Made when keys are first written: a pool that only stands for pages of another rank needs none.
        """
        with torch.inference_mode(False):  # they may be written outside of it too, as the other pages
            return torch.zeros_like(self.v_pages[0]) if self._int8_keys else None

    def allocate(self, count: int) -> list[int]:
        """Take pages; `PoolExhausted` when fewer are free."""
        return self.free_list.allocate(count)

    def free(self, pages: Sequence[int]) -> None:
        """Give pages back."""
        self.free_list.free(pages)

    def _poison(self, pages: Sequence[int]) -> None:
        for tensor in (*self.k_pages, *self.v_pages):
            tensor[pages] = _poison(tensor.dtype)

    def _poison_unroped(self, pages: Sequence[int]) -> None:
        for tensor in self.unroped_pages:
            tensor[pages] = torch.nan


def _poison(dtype: torch.dtype) -> float:
    """NaN; bytes that make the scales and the mean of int8 keys NaN."""
    return 255 if dtype == torch.uint8 else torch.nan
