"""5,000 latents of a tiny model: no end of positions, no drift from a reference that never resets."""

from __future__ import annotations

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit

from wavecore.cache import pages_needed
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import Rounds, StreamBatch


def latents(dit, rules, chunks):
    cache = local_cache(dit, pages_needed(rules), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(dit, cache), Handoff(levels_of(rules.steps), 0, (4, HEIGHT, WIDTH))
    text = dit.encode_text(text_features())
    for round in Rounds(rules, chunks):
        for slot in round.slots:
            assert all(0 <= slot.frame_start - read.position < 6 for read in slot.reads)
            assert rules.position_limit is None or slot.frame_start < rules.position_limit
        every = {slot.chunk: text for slot in round.slots}
        estimates = placement.run(round, handoff.latents(round), handoff.levels_of(round), every)
        complete = handoff.advance(round, estimates)
        if complete is not None:
            yield complete


@pytest.mark.parametrize(
    "chunks", [120, pytest.param(5000, marks=pytest.mark.slow)], ids=["120 latents", "5,000 latents"]
)
def test_a_stream_that_never_leaves_its_window_is_the_one_that_does(chunks):
    dit = tiny_dit()
    bounded = latents(dit, StreamBatch(steps=1, position_limit=21), chunks)
    free = latents(dit, StreamBatch(steps=1), chunks)
    count = 0
    for one, other in zip(bounded, free, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=0)
        count += 1
    assert count == chunks
