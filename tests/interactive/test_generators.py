"""What calls make: a branch keeps its prefix bit for bit and continues it as a fresh stream would."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.generators import NEW, OLD, ORDERS, cache_of, causal, joint, latents, make, same

from wavecore.control.speculative import BoundaryImage, Keyframes, LatentInput
from wavecore.control.speculative.events import CONTEXT, LATENT, PIXELS, SNAPSHOT
from wavecore.errors import WavecoreError
from wavecore.source import to_pixels, to_uint8


@pytest.mark.parametrize("order", ORDERS)
def test_every_part_of_every_group_is_reported_once(pipe, order):
    generator = causal(pipe, order)
    reports = make(generator, 0, 8, OLD)
    parts = [0] * 8
    for position, added in reports:
        assert not parts[position] & added
        parts[position] |= added
    assert parts == [LATENT | CONTEXT | PIXELS | SNAPSHOT] * 8
    assert [position for position, added in reports if added & PIXELS] == list(range(8))
    assert all(torch.isfinite(latent).all() for latent in latents(generator).values())


@pytest.mark.parametrize("anchor", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("branch", [3, 4, 5, 8])
def test_a_branch_keeps_its_prefix_and_depends_on_nothing_else(pipe, order, branch, anchor):
    """One generator is a call further ahead than the other when both branch at the same position."""
    near, far = causal(pipe, order, anchor=anchor), causal(pipe, order, anchor=anchor)
    make(near, 0, 9, OLD)
    make(far, 0, 9, OLD)
    make(far, 9, 9, OLD)
    before = latents(near, 0, branch)
    shown = {p: near.predictions[p].frames.copy() for p in before}
    for generator in (near, far):
        make(generator, branch, 9, NEW)
    assert same(latents(near, 0, branch), before) and same(latents(far, 0, branch), before)
    assert same(latents(near), latents(far))
    assert all(np.array_equal(near.predictions[p].frames, frames) for p, frames in shown.items())
    other = causal(pipe, order, anchor=anchor)
    make(other, 0, 9, OLD)
    make(other, branch, 9, OLD)
    assert not torch.equal(latents(other)[branch], latents(near)[branch]), "the prompt matters"


@pytest.mark.parametrize("branch", [2, 4, 7])
def test_clean_prefill_continues_from_the_latents_alone(pipe, branch):
    """A generator that is handed the clean latents and nothing else makes the same."""
    first = causal(pipe, prefill=True)
    make(first, 0, 9, OLD)
    fresh = causal(pipe, prefill=True)
    for p in range(branch):
        fresh.predictions[p] = first.predictions[p]
    for generator in (first, fresh):
        make(generator, branch, 9, NEW)
    assert same(latents(first), latents(fresh))
    kept = causal(pipe)
    make(kept, 0, 9, OLD)
    make(kept, branch, 9, NEW)
    assert not torch.equal(latents(kept)[branch], latents(first)[branch]), "it is another policy"


def test_retained_latents_are_prefilled_once(pipe):
    generator = causal(pipe, prefill=True)
    make(generator, 0, 9, OLD)
    ran = []
    run = generator.placement.placement.run
    generator.placement.placement.run = lambda round, *rest: (ran.append(round), run(round, *rest))[1]

    def prefilled():
        stored = [s.frame_start for r in ran for s in r.slots if s.stage == 2 and len(r.slots) == 1]
        ran.clear()
        return stored

    make(generator, 5, 3, NEW)
    assert prefilled() == [0, 3]
    make(generator, 7, 3, NEW)
    assert prefilled() == [5]
    make(generator, 6, 3, NEW)
    assert prefilled() == []


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("branches", [[(5, NEW)], [(4, NEW), (8, OLD), (9, NEW)]])
def test_frames_are_those_of_a_decoder_that_saw_the_final_latents_only(pipe, order, branches):
    """Rollback of the decoder: what is played is what decoding from the beginning gives."""
    generator = causal(pipe, order)
    make(generator, 0, 9, OLD)
    for position, prompt in branches:
        make(generator, position, 9, prompt)
    played = torch.stack(list(latents(generator).values()), 1)[None]
    frames = np.concatenate([generator.predictions[p].frames for p in generator.predictions])
    with torch.inference_mode():
        assert np.array_equal(frames, to_uint8(pipe.model.vae.decode(played)[0]))
    with pytest.raises(ValueError, match="read-only"):
        generator.predictions[0].frames[0] = 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("stop", [1, 2, 5, 7])
def test_a_call_that_is_ended_keeps_what_it_reported_and_no_page_of_the_rest(pipe, order, stop):
    generator = causal(pipe, order)
    make(generator, 0, 9, OLD)
    reports = make(generator, 4, 9, NEW, stop=stop)
    assert len(reports) == stop
    table = cache_of(generator).table
    assert {key.stage for key in table} == {2}
    pieces = sum(piece.frames for piece in generator._pieces)
    assert cache_of(generator).pool.free_list.used == pieces
    whole = causal(pipe, order)
    make(whole, 0, 9, OLD)
    make(whole, 4, 9, NEW)
    make(generator, 4, 9, NEW)
    assert same(latents(generator), latents(whole)), "it can be made again"


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("branch", "anchor"), [(3, False), (4, False), (4, True), (2, True)])
def test_what_was_replaced_can_be_restored(pipe, order, branch, anchor):
    generator, untouched = causal(pipe, order, anchor=anchor), causal(pipe, order, anchor=anchor)
    for each in (generator, untouched):
        make(each, 0, 9, OLD)
    shelf = generator.cut(branch)
    for _ in zip(range(20), generator.call(branch, 9, 0, NEW), strict=False):
        pass  # the anchor, in part on the shelf where it was cut in two, is turned meanwhile
    generator.restore(shelf)
    assert same(latents(generator), latents(untouched))
    for each in (generator, untouched):
        make(each, 9, 3, OLD)
    assert same(latents(generator), latents(untouched)), "their keys and values are back too"
    for each in (generator, untouched):
        each.discard(each.cut(0))
        assert cache_of(each).pool.free_list.used == 0


@pytest.mark.parametrize("prefill", [False, True])
def test_an_endless_stream_keeps_no_past(pipe, prefill):
    generator, untouched = causal(pipe, prefill=prefill), causal(pipe, prefill=prefill)
    used = []
    for position in range(0, 90, 9):
        generator.release(position)
        for each in (generator, untouched) if position < 36 else (generator,):
            make(each, position, 9, OLD)
        used.append((cache_of(generator).pool.free_list.used, len(generator.predictions)))
        if position < 36:
            assert same(latents(generator, position), latents(untouched, position)), "nothing was missed"
    assert used[3] == used[-1]


def test_whole_clips_are_decoded_at_the_end_to_the_same_frames(pipe):
    streaming, whole = causal(pipe), causal(pipe, whole_clip=True)
    make(streaming, 0, 9, OLD)
    reports = [made for made in make(whole, 0, 9, OLD) if made.parts & PIXELS]
    first = make(causal(pipe, whole_clip=True), 0, 9, OLD)
    assert len(reports) == 9 and [made.parts for made in first[:6]] == [CONTEXT] * 6
    for p in range(9):
        assert np.array_equal(streaming.predictions[p].frames, whole.predictions[p].frames)


# -- bidirectional ------------------------------------------------------------------------

JOINT = [BoundaryImage(6), LatentInput(6), Keyframes(6, group=2)]


@pytest.mark.parametrize("adapter", JOINT, ids=lambda adapter: adapter.name)
def test_a_joint_call_continues_from_what_its_adapter_is_given(joint_pipe, adapter):
    """Fresh generators that hold only what is given make the same; the trimmed span is not played."""
    generator = joint(joint_pipe, adapter)
    assert [made.position for made in make(generator, 0, 6, OLD)] == list(range(6))
    assert generator.predictions[0].frames.shape[0] == 1
    branch = 4
    trimmed, groups = adapter.trimmed(branch), adapter.playable(branch)
    before = latents(generator, 0, branch)
    fresh = joint(joint_pipe, adapter)
    for p in range(branch - trimmed, branch):
        fresh.predictions[p] = generator.predictions[p]
    for each in (generator, fresh):
        reports = make(each, branch, groups, NEW, trimmed)
        assert [made.position for made in reports] == list(range(branch, branch + groups))
        assert {made.parts for made in reports} == {LATENT | PIXELS}
    assert same(latents(generator, 0, branch), before)
    assert same(latents(generator, branch), latents(fresh, branch))
    assert all(len(generator.predictions[p].frames) == 4 for p in range(branch, branch + groups))


def test_adapters_differ_in_what_they_are_given(joint_pipe):
    made = []
    for adapter in JOINT:
        generator = joint(joint_pipe, adapter)
        make(generator, 0, 6, OLD)
        make(generator, 4, adapter.playable(4), NEW, adapter.trimmed(4))
        made.append(generator.predictions[4].latent)
    assert not any(torch.equal(made[i], made[j]) for i, j in ((0, 1), (1, 2), (0, 2)))


def test_a_boundary_image_is_the_last_frame_before_the_branch(joint_pipe):
    generator = joint(joint_pipe, JOINT[0])
    make(generator, 0, 6, OLD)
    given = generator._given(4, 1)
    frame = generator.predictions[3].frames[-1:].copy()
    assert torch.equal(given, joint_pipe.model.vae.encode(to_pixels(frame))[0])


def test_the_latents_of_a_joint_call_depend_on_each_other(joint_pipe):
    """In both directions: cutting the call short changes its first new latent."""
    short, long = joint(joint_pipe, LatentInput(3)), joint(joint_pipe, LatentInput(6))
    for generator, groups in ((short, 2), (long, 5)):
        generator.predictions[0] = make_first(joint_pipe)
        make(generator, 1, groups, NEW, 1)
    assert not torch.equal(short.predictions[1].latent, long.predictions[1].latent)


def make_first(pipe):
    generator = joint(pipe, LatentInput(6))
    make(generator, 0, 6, OLD)
    return generator.predictions[0]


def test_a_joint_call_without_its_context_says_what_is_missing(joint_pipe):
    generator = joint(joint_pipe, JOINT[2])
    make(generator, 0, 6, OLD)
    generator.discard(generator.cut(1))
    with pytest.raises(WavecoreError, match="call at 2: expected 2 latents before it, got 1"):
        make(generator, 2, 4, NEW, 2)


@pytest.mark.parametrize("adapter", JOINT, ids=lambda adapter: adapter.name)
def test_a_joint_call_behind_a_gap_continues_from_what_was_there_before_it(joint_pipe, adapter):
    """A fallback has left position 3 empty, and playback is past it."""
    gap, dense = joint(joint_pipe, adapter), joint(joint_pipe, adapter)
    for generator in (gap, dense):
        make(generator, 0, 6, OLD)
        generator.discard(generator.cut(3))
    gap.release(4)
    assert torch.equal(gap._given(4, adapter.overlap), dense._given(3, adapter.overlap))
    make(gap, 4, adapter.playable(4), NEW, adapter.trimmed(4))
    assert 4 in gap.predictions


@pytest.mark.parametrize("adapter", JOINT, ids=lambda adapter: adapter.name)
def test_what_a_joint_call_replaced_can_be_restored(joint_pipe, adapter):
    generator = joint(joint_pipe, adapter, whole_clip=True)
    make(generator, 0, 6, OLD)
    before = latents(generator)
    shelf = generator.cut(4)
    list(generator.call(4, adapter.playable(4), adapter.trimmed(4), NEW))
    generator.restore(shelf)
    assert same(latents(generator), before)
