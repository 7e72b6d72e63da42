"""The context of one session: its page table on the memory of a pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from wavecore.cache.keys import turn_keys
from wavecore.cache.pool import PagePool
from wavecore.cache.table import PageTable, Rotation
from wavecore.cache.view import PageView
from wavecore.errors import UsageError
from wavecore.rounds import Key, Round, Slot
from wavecore.transfer import upload


class ContextCache:
    """Keys and values of one session, by chunk and stage.

    All state of a stream's context lives here, so sessions that share a pool and a model cannot
    touch each other. Around each round: `begin`, `view` for the slots that run together, `end`.

    Parameters
    ----------
    pool : PagePool
        Where the pages are.
    rope : callable
        Temporal positions, int Tensor [m], to the rotations of one latent frame at each,
        float32 Tensor [m, n, d // 2, 2].
    table : PageTable, optional
        Of the session, where its pages are not taken from the free lists of the pool.
    """

    def __init__(
        self, pool: PagePool, rope: Callable[[Tensor], Tensor], table: PageTable | None = None
    ) -> None:
        self.pool = pool
        self.table = PageTable(pool.free_list, pool.unroped_free_list) if table is None else table
        self.rope = rope

    def begin(self, round: Round) -> None:
        """Allocate the pages that a round writes and rotate the anchors that it reads.

        Raises
        ------
        PoolExhausted
            When the pool is too small; nothing has then changed.
        WavecoreError
            When the round reads what is not there.
        """
        rotations = self.table.begin(round)
        if rotations:
            self._rotate(rotations)

    def view(self, slots: Sequence[Slot]) -> PageView:
        """Pages of one forward pass over slots of equal length, in the order given."""
        lengths = {slot.frames for slot in slots}
        if len(lengths) != 1:
            raise UsageError(f"slots: expected slots of equal length, got frames {sorted(lengths)}")
        reads = [self.table.read_ids(slot) for slot in slots]
        width = max(map(len, reads))
        tokens = self.pool.page_tokens
        unroped = any(slot.keep_unroped for slot in slots)
        return PageView(
            k_pages=self.pool.k_pages,
            v_pages=self.pool.v_pages,
            write_ids=self._ids([self.table.write_ids(slot) for slot in slots]),
            read_table=self._ids([row + [-1] * (width - len(row)) for row in reads]),
            read_lengths=self._ids([[tokens] * len(row) + [0] * (width - len(row)) for row in reads]),
            unroped_pages=self.pool.unroped_pages if unroped else None,
            unroped_ids=self._ids([self.table.unroped_ids(slot) for slot in slots]) if unroped else None,
            key_staging=self.pool.key_staging,
        )

    def end(self, round: Round) -> None:
        """Release what nobody reads after the round."""
        self.table.end(round)

    def drop_from(self, chunk: int) -> None:
        """Forget `chunk` and all later ones, for a stream that branches there."""
        self.table.drop_from(chunk)

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget `keys`, which no round reads or releases any more."""
        self.table.drop(keys)

    def close(self) -> None:
        """Give every page back to the pool."""
        self.table.close()

    def _ids(self, rows: Sequence[Sequence[int]]) -> Tensor:
        return upload(torch.tensor(rows, dtype=torch.int32, device="cpu"), self.pool.device)

    def _rotate(self, rotations: Sequence[Rotation]) -> None:
        pool = self.pool
        positions = [r.position + frame for r in rotations for frame in range(len(r.pages))]
        rope = self.rope(upload(torch.tensor(positions, device="cpu"), pool.device))
        source, target = self._ids(
            [[page for r in rotations for page in r.unroped], [page for r in rotations for page in r.pages]]
        )
        for unroped, keys in zip(pool.unroped_pages, pool.k_pages, strict=True):
            turn_keys(unroped, source, keys, target, rope, pool.key_staging)
        copied = [
            (a, b) for r in rotations if r.values_from for a, b in zip(r.values_from, r.pages, strict=True)
        ]
        if copied:
            before, after = upload(torch.tensor(copied, device="cpu"), pool.device).unbind(1)
            for values in pool.v_pages:
                values.index_copy_(0, after, values.index_select(0, before))
