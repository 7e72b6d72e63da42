"""The context of a session on real tensors."""

import pytest
import torch
from support.models import HEIGHT, WIDTH, every_chunk, levels_of, text_features, tiny_dit

from wavecore import ops
from wavecore.cache import ContextCache, PagePool, PoolExhausted, PoolSize, pages_needed
from wavecore.errors import UsageError
from wavecore.models.rope import rope_table
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import StreamBatch, Wavefront, wavefront


def test_view_lists_pages_in_attention_order():
    rules = Wavefront(steps=2, chunk_frames=2, history=1, store_history=1)
    pool = PagePool(1, pages_needed(rules), 5, 2, 8)
    cache = ContextCache(pool, lambda positions: rope_table(positions[:, None], 1, 5, 8))
    for index in range(5):
        round = rules.round(index)
        cache.begin(round)
        view = cache.view(round.slots)
        assert view.write_ids.dtype == view.read_table.dtype == view.read_lengths.dtype == torch.int32
        for row, slot in enumerate(round.slots):
            ids, lengths = view.read_table[row].tolist(), view.read_lengths[row].tolist()
            frames = sum(read.frames for read in slot.reads)
            assert lengths == [5] * frames + [0] * (len(ids) - frames)
            assert ids[frames:] == [-1] * (len(ids) - frames)
            assert ids[:frames] == cache.table.read_ids(slot)
            own = next(i for i, read in enumerate(slot.reads) if read.key == slot.key)
            assert ids[2 * own : 2 * own + 2] == view.write_ids[row].tolist()
        assert (view.unroped_ids is not None) == (index == 2)
        cache.end(round)
    cache.close()
    assert pool.free_list.used == pool.unroped_free_list.used == 0


def test_slots_of_unequal_length_do_not_go_into_one_view():
    rules = StreamBatch(steps=2)
    cache = ContextCache(PagePool(1, pages_needed(rules), 5, 2, 8), lambda _: torch.empty(0))
    cache.begin(rules.round(0))
    cache.end(rules.round(0))
    cache.begin(rules.round(1))
    with pytest.raises(UsageError, match=r"slots of equal length, got frames \[1, 2\]"):
        cache.view(rules.round(1).slots)


def test_poison_marks_free_pages():
    pool = PagePool(2, PoolSize(3, 1), 4, 2, 8, poison=True)
    pages = pool.allocate(2)
    for tensor in (*pool.k_pages, *pool.v_pages):
        tensor[pages] = 1.0
    pool.free(pages[:1])
    for tensor in (*pool.k_pages, *pool.v_pages):
        assert tensor[pages[0]].isnan().all()
        assert tensor[pages[1]].eq(1).all()


def test_poison_catches_a_release_that_comes_too_early():
    """The check that the other tests lean on: give a page back, and the latents show it."""
    dit = tiny_dit()
    rounds = list(wavefront(2, 3))
    cache = local_cache(dit, PoolSize(40, 3), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(dit, cache), Handoff(levels_of(2), 0, (4, HEIGHT, WIDTH))
    text = dit.encode_text(text_features())
    results = []
    for round in rounds[:4]:
        results.append(placement.run(round, handoff.latents(round), levels_of(2), every_chunk(round, text)))
        handoff.advance(round, results[-1])
        if round.index == 2:
            store = round.slots[0]
            assert store.stage == 2
            cache.pool.free(cache.table.write_ids(store))
    assert all(x0.isfinite().all() for result in results[:3] for x0 in result.values())
    assert results[3][1].isnan().any()


def test_a_pool_too_small_is_one_clear_line():
    dit = tiny_dit(layers=1)
    cache = local_cache(dit, PoolSize(5, 3), HEIGHT, WIDTH)
    rounds = wavefront(2)
    cache.begin(next(rounds))
    with pytest.raises(PoolExhausted, match=r"pages: expected 6 free, got 2 of 5; give the pool"):
        cache.begin(next(rounds))


def test_rotation_to_the_position_of_writing_gives_the_written_bits():
    """What lets an anchor leave its place and return, as it does in chunk-major order."""
    heads, head_dim, tokens, position = 2, 16, 6, 9
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, tokens, heads * head_dim, generator=generator)
    weight = torch.randn(heads * head_dim, generator=generator)
    rope = rope_table(torch.tensor([[position]]), 2, 3, head_dim)
    pages = torch.zeros(3, tokens, heads, head_dim)
    unroped = torch.zeros(1, tokens, heads, head_dim)
    zero = torch.zeros(1, 1, dtype=torch.int32)
    ops.qkv_page_write(
        q, k, v, weight, weight, rope, pages, torch.zeros_like(pages), zero, 1e-6, unroped, zero
    )
    target = torch.tensor([2], dtype=torch.int32)
    ops.rope_shift(unroped, zero[0], pages, target, rope)
    assert torch.equal(pages[2], pages[0])
    assert pages[0].abs().sum() > 0
