"""The same rounds in every order of execution."""

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, run_stream, tiny_dit

from wavecore.cache import PagePool, PoolSize, pages_needed
from wavecore.rounds import (
    Sequential,
    Wavefront,
    chunk_major,
    round_major,
    sequential,
    stream_batch,
    wavefront,
)

STEPS = [1, 2, 4, 5]
DIT = tiny_dit()


def stacked(rounds, steps, order="slots", **options):
    latents, _ = run_stream(DIT, rounds, levels_of(steps), order, **options)
    result = torch.stack(latents)
    assert result.isfinite().all()
    return result


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize(
    "rules", [{}, {"anchor_position": "reference", "history_rule": "reference"}, {"anchor_chunks": 0}]
)
def test_round_major_lock_step_and_chunk_major_give_the_same_bits(steps, rules):
    slots = stacked(wavefront(steps, 8, **rules), steps)
    assert slots.std() > 0.1
    assert torch.equal(stacked(wavefront(steps, 8, **rules), steps, "layers"), slots)
    assert torch.equal(stacked(round_major(wavefront(steps, 8, **rules)), steps), slots)
    assert torch.equal(stacked(chunk_major(wavefront(steps, 8, **rules)), steps), slots)


@pytest.mark.parametrize("steps", STEPS)
@pytest.mark.parametrize("prompts", [1, 8])
def test_batched_differs_by_rounding_only(steps, prompts):
    slots = stacked(wavefront(steps, 8), steps, prompts=prompts)
    batched = stacked(wavefront(steps, 8), steps, "batched", prompts=prompts)
    assert (batched - slots).abs().max() <= 1e-5


@pytest.mark.parametrize("order", ["slots", "batched"])
def test_any_number_of_threads_gives_the_same_bits(order):
    """A library's matrix product at these shapes depends on how many threads it may use."""
    one = stacked(wavefront(4, 8), 4, order, prompts=2)
    torch.set_num_threads(2)
    assert torch.equal(stacked(wavefront(4, 8), 4, order, prompts=2), one)


def test_every_chunk_follows_its_own_prompt():
    one, many = (stacked(wavefront(4, 8), 4, "batched", prompts=prompts) for prompts in (1, 8))
    assert (one[0] - many[0]).abs().max() <= 1e-5
    assert all((a - b).abs().mean() > 0.01 for a, b in zip(one[1:], many[1:], strict=True))


@pytest.mark.parametrize("steps", STEPS)
def test_chunk_major_turns_anchors_back_and_forth(steps):
    """History so short that the anchor moves from early on, and returns with every next chunk."""
    rules = {"history": 0, "store_history": 1}
    slots = stacked(wavefront(steps, 10, **rules), steps)
    assert torch.equal(stacked(chunk_major(wavefront(steps, 10, **rules)), steps), slots)


@pytest.mark.parametrize("steps", STEPS)
def test_fixed_history_makes_the_end_irrelevant(steps):
    short, long = (stacked(wavefront(steps, m), steps) for m in (8, 12))
    assert torch.equal(long[:8], short)


def test_reference_history_depends_on_the_end_for_the_last_chunks():
    """Published runtime, N = 4: M = 8 and M = 12 agree on chunks 0 to 4 and differ on 5 to 7."""
    short, long = (stacked(wavefront(4, m, history_rule="reference"), 4) for m in (8, 12))
    assert torch.equal(long[:5], short[:5])
    assert all(not torch.equal(long[c], short[c]) for c in (5, 6, 7))


@pytest.mark.parametrize("anchor_chunks", [0, 1, 2])
def test_one_step_wave_is_self_forcing_with_the_live_store_as_history(anchor_chunks):
    wave = wavefront(1, 10, history=2, store_history=3, anchor_chunks=anchor_chunks)
    serial = sequential(1, 10, history=3, store_history=3, anchor_chunks=anchor_chunks)
    assert torch.equal(stacked(wave, 1), stacked(serial, 1))


def test_noise_and_so_latents_depend_on_the_seed():
    first, second = (stacked(wavefront(2, 3), 2, seed=seed) for seed in (0, 1))
    assert (first - second).abs().mean() > 0.1


@pytest.mark.parametrize("rules", [Wavefront(steps=4), Sequential(steps=4), Wavefront(steps=2, history=0)])
def test_pool_of_the_size_that_is_said_serves_a_long_stream(rules):
    size = pages_needed(rules)
    dit = tiny_dit(layers=1)
    pool = PagePool(1, size, dit.tokens_per_frame(HEIGHT, WIDTH), 2, 16, poison=True, unroped_pages=0)
    rounds = [rules.round(index) for index in range(rules.count(20))]
    latents, _ = run_stream(dit, rounds, levels_of(rules.steps), pool=pool)
    assert torch.stack(latents[:18]).isfinite().all()
    assert pool.free_list.peak == size.pages


def test_bfloat16_runs_and_stays_near_float32():
    exact = stacked(wavefront(2, 6), 2, "batched")
    model = tiny_dit().to(torch.bfloat16)
    latents, cache = run_stream(model, wavefront(2, 6), levels_of(2), "batched")
    rough = torch.stack(latents)
    assert rough.dtype == torch.float32
    assert cache.pool.k_pages[0].dtype == torch.bfloat16
    assert (rough - exact).abs().mean() < 0.05


@pytest.mark.parametrize("stream", [wavefront, stream_batch, sequential])
def test_sessions_on_one_pool_are_isolated(stream):
    """One session after another, and one beside a stale one, give what a session alone gives."""
    size = pages_needed(stream(2).rules)
    tokens = DIT.tokens_per_frame(HEIGHT, WIDTH)
    pool = PagePool(2, PoolSize(2 * size.pages, 2 * size.unroped_pages), tokens, 2, 16, poison=True)
    alone, _ = run_stream(DIT, stream(2, 12), levels_of(2), seed=5)
    first, cache = run_stream(DIT, stream(2, 12), levels_of(2), seed=4, pool=pool)
    second, other = run_stream(DIT, stream(2, 12), levels_of(2), seed=5, pool=pool)
    assert all(map(torch.equal, second, alone))
    assert not any(map(torch.equal, first, alone))
    cache.close()
    assert 0 < pool.free_list.used <= size.pages
    third, _ = run_stream(DIT, stream(2, 12), levels_of(2), seed=5, pool=pool)
    assert all(map(torch.equal, third, alone))
    other.close()
