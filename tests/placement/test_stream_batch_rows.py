"""Rows of a stream batch: each is a serial run of its step, and reads the sinks and the three newest."""

from __future__ import annotations

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit

from wavecore.cache import pages_needed
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import Key, Rounds, StreamBatch

CHUNKS = 10


def placement_for(dit, rules, order="batched"):
    return LocalPlacement(dit, local_cache(dit, pages_needed(rules), HEIGHT, WIDTH, poison=True), order)


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("limit", [12])
def test_every_row_is_a_serial_run_of_its_step(steps, limit):
    """One chunk after the other through one step, with a cache that nothing else has written to."""
    dit, levels = tiny_dit(), levels_of(steps)
    rules = StreamBatch(steps=steps, position_limit=limit)
    batched, handoff = placement_for(dit, rules), Handoff(levels, 0, (4, HEIGHT, WIDTH))
    texts = [dit.encode_text(text_features(seed)) for seed in range(3)]
    given, made = {}, {}
    for round in Rounds(rules, CHUNKS):
        latents = handoff.latents(round)
        text = {slot.chunk: texts[slot.chunk % 3] for slot in round.slots}
        estimates = batched.run(round, latents, levels, text)
        handoff.advance(round, estimates)
        for slot in round.slots:
            given[slot.key], made[slot.key] = latents[slot.stage], estimates[slot.stage]
    for step in range(steps):
        alone = StreamBatch(steps=1, position_limit=limit)
        serial = placement_for(dit, alone)
        for round in Rounds(alone, CHUNKS):
            (slot,) = round.slots
            latents = {0: given[Key(slot.chunk, step)]}
            estimate = serial.run(round, latents, [levels[step]], {slot.chunk: texts[slot.chunk % 3]})[0]
            torch.testing.assert_close(made[Key(slot.chunk, step)], estimate, atol=1e-5, rtol=0)


class Watched:
    """A cache view that remembers which latent was last written to a page, and what each slot reads."""

    def __init__(self, cache, rules):
        self.view, self.rules, self.holds, self.found = cache.view, rules, {}, []

    def __call__(self, slots):
        pages = self.view(slots)
        for slot, written in zip(slots, pages.write_ids.tolist(), strict=True):
            first = self.rules.start(slot.chunk)
            self.holds |= {page: (slot.stage, first + frame) for frame, page in enumerate(written)}
        for slot, read in zip(slots, pages.read_table.tolist(), strict=True):
            self.found.append((slot, [self.holds[page] for page in read if page >= 0]))
        return pages


@pytest.mark.parametrize("steps", [1, 2, 3, 4])
@pytest.mark.parametrize("order", ["batched", "slots"])
def test_after_any_chunk_a_row_reads_the_sinks_and_the_three_newest_in_every_session(steps, order):
    """By what was last written to its pages; the public code loses frames in a second session."""
    dit, rules, levels = tiny_dit(), StreamBatch(steps=steps), levels_of(4)[:steps]
    text = dit.encode_text(text_features())
    for _ in range(2):
        placement, handoff = placement_for(dit, rules, order), Handoff(levels, 0, (4, HEIGHT, WIDTH))
        placement.cache.view = watched = Watched(placement.cache, rules)
        for round in Rounds(rules, 12):
            every = {slot.chunk: text for slot in round.slots}
            estimates = placement.run(round, handoff.latents(round), levels, every)
            handoff.advance(round, estimates)
        assert len(watched.found) == 12 * steps
        for slot, found in watched.found:
            newest = rules.start(slot.chunk) + slot.frames - 1
            assert {stage for stage, _ in found} == {slot.stage}, "nothing of another noise level"
            expected = {0, 1, 2} | set(range(max(0, newest - 2), newest + 1))
            assert slot.chunk < 4 or sorted(latent for _, latent in found) == sorted(expected)
        placement.close()
