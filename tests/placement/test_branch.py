"""A stream that branches equals, after the branch, a fresh continuation of the same prefix."""

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit

from wavecore.cache import pages_needed
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import Rounds, Sequential, StreamBatch, Wavefront

DIT = tiny_dit()
OLD, NEW = (DIT.encode_text(text_features(seed)) for seed in (0, 1))
KINDS = [Wavefront(steps=2, retain=6), Sequential(steps=2, retain=6), StreamBatch(steps=2, retain=6)]


def run(rules, chunks, branch=None, order="slots", new=NEW):
    """Final latents; with `branch` = (chunk, round), that chunk and later ones anew, with another prompt."""
    levels = levels_of(rules.steps)
    cache = local_cache(DIT, pages_needed(rules), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(DIT, cache, order), Handoff(levels, 0, (4, HEIGHT, WIDTH))
    rounds = Rounds(rules, chunks)
    first_new = chunks
    final = {}
    while True:
        if branch is not None and rounds.index == branch[1]:
            first_new = branch[0]
            for part in (rounds.branch, cache.drop_from, handoff.drop_from):
                part(first_new)
            branch = None
        round = next(rounds, None)
        if round is None:
            return [final[chunk] for chunk in range(chunks)]
        text = {slot.chunk: new if slot.chunk >= first_new else OLD for slot in round.slots}
        complete = handoff.advance(round, placement.run(round, handoff.latents(round), levels, text))
        if complete is not None:
            final[round.completes] = complete


@pytest.mark.parametrize("rules", KINDS)
@pytest.mark.parametrize("late", [0, 1, 4])
def test_before_the_branch_nothing_changes_and_after_it_depends_on_the_prefix_only(rules, late):
    """Cut at chunk 5 once it and the chunks before it are through, `late` chunks further on or less."""
    plain = run(rules, 9)
    through = rules.entry(4) + rules.rounds_held()
    fresh = run(rules, 9, branch=(5, through))
    late_cut = run(rules, 9, branch=(5, through + late * rules.period))
    assert all(torch.equal(a, b) for a, b in zip(fresh[:5], plain[:5], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(late_cut, fresh, strict=True))
    assert all((a - b).abs().mean() > 0.01 for a, b in zip(fresh[5:], plain[5:], strict=True))


def test_a_cut_that_keeps_chunks_in_flight():
    """Round 6 of a wave: chunks 4 and 5 are at work; cut at 5, and 4 goes on as if nothing happened."""
    plain = run(KINDS[0], 9)
    cut = run(KINDS[0], 9, branch=(5, 6))
    assert all(torch.equal(a, b) for a, b in zip(cut[:5], plain[:5], strict=True))
    assert all(latent.isfinite().all() for latent in cut)
    layers = run(KINDS[0], 9, branch=(5, 6), order="layers")
    assert all(torch.equal(a, b) for a, b in zip(cut, layers, strict=True))


def test_a_sequential_branch_to_the_same_prompt_repeats_itself():
    plain = run(KINDS[1], 9)
    again = run(KINDS[1], 9, branch=(3, KINDS[1].entry(7)), new=OLD)
    assert all(torch.equal(a, b) for a, b in zip(again, plain, strict=True))
