"""Paged keys and values: pools, page tables, and the context of one session."""

from wavecore.cache.context import ContextCache
from wavecore.cache.pool import PagePool
from wavecore.cache.table import (
    FreePages,
    LatePages,
    PageTable,
    PoolExhausted,
    PoolSize,
    pages_needed,
    pages_used,
)
from wavecore.cache.view import PageView

__all__ = [
    "ContextCache",
    "FreePages",
    "LatePages",
    "PagePool",
    "PageTable",
    "PageView",
    "PoolExhausted",
    "PoolSize",
    "pages_needed",
    "pages_used",
]
