"""Paged rounds against dense forward passes that know neither rounds nor pages.

A dense pass lays chunks side by side, each with its own noise level and temporal position, and says
which reads which. What a chunk reads is written down here anew, from the definition of the method.
"""

import pytest
import torch
from support.models import HEIGHT, WIDTH, every_chunk, levels_of, text_features, tiny_dit

from wavecore.cache import pages_used
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import sequential, stream_batch, wavefront

DIT = tiny_dit()
TEXT = DIT.encode_text(text_features())


class Dense:
    """A joint forward pass, put together part by part."""

    def __init__(self):
        self.parts = []  # (latent [c, f, h, w], level, position, indices of the parts it reads)

    def add(self, latent, level, position, reads=()):
        self.parts.append((latent, level, position, [*reads, len(self.parts)]))
        return len(self.parts) - 1

    def run(self):
        """Clean estimate of every part."""
        frames = [latent.shape[1] for latent, *_ in self.parts]
        latents = torch.cat([latent for latent, *_ in self.parts], 1)[None]
        levels = torch.tensor([p[1] for p in self.parts], dtype=torch.float64)
        part = torch.repeat_interleave(torch.arange(len(frames)), torch.tensor(frames))
        times, sigmas = levels[part].T
        positions = torch.cat([p[2] + torch.arange(n) for n, p in zip(frames, self.parts, strict=True)])
        reads = torch.zeros(len(frames), len(frames), dtype=torch.bool)
        for row, (*_, indices) in enumerate(self.parts):
            reads[row, indices] = True
        prediction = DIT.predict(
            latents,
            times[None],
            text_features(),
            attend=reads[part][:, part],
            frame_positions=positions[None],
        )
        x0 = (latents - sigmas[None, None, :, None, None] * prediction).float()
        return x0[0].split(frames, dim=1)


def anchor_at(dense, latent, level, position):
    """A copy of chunk 0, which reads itself only and so is the same at any position."""
    return dense.add(latent, level, position)


def wave_oracle(t, steps, width, store_width, rule, clean, flying, levels):
    """Estimates of the denoising slots of round t, by stage.

    `clean` are the final latents of the chunks before; `flying` the inputs of the slots by stage.
    """
    dense, parts, store = Dense(), {}, levels[steps]
    stored = t - steps  # the live store's chunk, if not negative

    def anchor(window, oldest_denoising=None):
        if rule == "reference" and oldest_denoising is not None:
            return 3 * oldest_denoising - 3 * sum(1 for c in window if c < stored) - 3
        return 3 * min(window) - 3

    for chunk in range(stored + 1):
        window = list(range(max(1, chunk - store_width), chunk + 1))
        reads = [parts[c] for c in window if c != chunk]
        if chunk > 0:
            reads = [anchor_at(dense, clean[0], store, anchor(window)), *reads]
        parts[chunk] = dense.add(clean[chunk], store, 3 * chunk, reads)
    estimates = {}
    for stage in sorted(flying, reverse=True):
        chunk = t - stage
        window = list(range(max(1, stored - width), max(0, stored)))
        window += list(range(max(0, stored), chunk + 1))
        reads = [parts[c] for c in window if c != chunk]
        if stored > 0:
            oldest = max(0, t - steps + 1)
            reads = [anchor_at(dense, clean[0], store, anchor(window, oldest)), *reads]
        parts[chunk] = estimates[stage] = dense.add(flying[stage], levels[stage], 3 * chunk, reads)
    result = dense.run()
    return {stage: result[index] for stage, index in estimates.items()}


@pytest.mark.parametrize("order", ["slots", "batched"])
@pytest.mark.parametrize(
    ("steps", "width", "store_width", "rule"),
    [(4, 2, 5, "adjacent"), (2, 1, 2, "adjacent"), (2, 1, 2, "reference"), (1, 0, 1, "adjacent")],
)
def test_every_round_of_a_wave_equals_a_joint_dense_pass(steps, width, store_width, rule, order):
    levels = levels_of(steps)
    rounds = list(wavefront(steps, 9, history=width, store_history=store_width, anchor_position=rule))
    cache = local_cache(DIT, pages_used(rounds), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(DIT, cache, order), Handoff(levels, 3, (4, HEIGHT, WIDTH))
    clean = {}
    worst = 0.0
    for round in rounds:
        inputs = handoff.latents(round)
        estimates = placement.run(round, inputs, levels, every_chunk(round, TEXT))
        flying = {stage: latent for stage, latent in inputs.items() if stage < steps}
        if flying:
            expected = wave_oracle(round.index, steps, width, store_width, rule, clean, flying, levels)
            assert estimates.keys() == expected.keys()
            for stage in expected:
                worst = max(worst, float((estimates[stage] - expected[stage]).abs().max()))
        complete = handoff.advance(round, estimates)
        if complete is not None:
            clean[round.completes] = complete
    print(f"\nN={steps} {rule} {order}: max error against dense {worst:.2e}")
    assert worst <= 1e-5
    assert torch.stack(list(clean.values())).std() > 0.1


def test_sequential_equals_recomputing_the_past_for_every_pass():
    levels = levels_of(4)
    rounds = list(sequential(4, 5))
    cache = local_cache(DIT, pages_used(rounds), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(DIT, cache), Handoff(levels, 3, (4, HEIGHT, WIDTH))
    clean = []
    for round in rounds:
        (slot,) = round.slots
        inputs = handoff.latents(round)
        estimates = placement.run(round, inputs, levels, every_chunk(round, TEXT))
        if slot.stage < 4:
            latents = torch.cat([*clean, inputs[slot.stage]], 1)[None]
            level = levels[slot.stage]
            times = torch.zeros(1, latents.shape[2], dtype=torch.float64)
            times[:, -3:] = level.timestep
            velocity = DIT(latents, times, text_features(), attend="causal")[0, :, -3:]
            expected = inputs[slot.stage] - level.sigma * velocity
            assert (estimates[slot.stage] - expected).abs().max() <= 1e-5
        complete = handoff.advance(round, estimates)
        if complete is not None:
            clean.append(complete)
    assert len(clean) == 5


@pytest.mark.parametrize("steps", [1, 2, 4])
@pytest.mark.parametrize("anchor_position", ["absolute", "adjacent"])
def test_each_row_of_a_stream_batch_equals_a_serial_run_of_its_step(steps, anchor_position):
    """Row i: every chunk at level i, reading latents 0, 1, 2 and the two before it at level i."""
    levels = levels_of(steps)
    rounds = list(stream_batch(steps, 9, anchor_position=anchor_position))
    cache = local_cache(DIT, pages_used(rounds), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(DIT, cache), Handoff(levels, 3, (4, HEIGHT, WIDTH))
    inputs, estimates = {}, {}
    for round in rounds:
        given = handoff.latents(round)
        got = placement.run(round, given, levels, every_chunk(round, TEXT))
        for slot in round.slots:
            inputs[slot.key], estimates[slot.key] = given[slot.stage], got[slot.stage]
        handoff.advance(round, got)
    starts = [0, *range(2, 10)]
    for stage in range(steps):
        dense, parts = Dense(), []
        for chunk in range(9):
            window = list(range(max(2, chunk - 2), chunk))
            shift = 0
            if anchor_position == "adjacent" and chunk >= 2:
                shift = starts[min([*window, chunk])] - 3
            sinks = parts[: min(2, chunk)]
            if shift:
                first = dense.add(inputs[0, stage], levels[stage], shift)
                second = dense.add(inputs[1, stage], levels[stage], shift + 2, [first])
                sinks = [first, second]
            reads = [*sinks, *(parts[c] for c in window)]
            parts.append(dense.add(inputs[chunk, stage], levels[stage], starts[chunk], reads))
        expected = dense.run()
        for chunk, part in enumerate(parts):
            assert (estimates[chunk, stage] - expected[part]).abs().max() <= 1e-5


def test_one_joint_pass_over_four_chunks_at_four_levels():
    """Round 3 of a wave is a chunk-causal pass in which every chunk has its own noise level."""
    levels = levels_of(4)
    rounds = list(wavefront(4, 4))[:4]
    cache = local_cache(DIT, pages_used(rounds), HEIGHT, WIDTH, poison=True)
    placement, handoff = LocalPlacement(DIT, cache, "slots"), Handoff(levels, 1, (4, HEIGHT, WIDTH))
    for round in rounds:
        inputs = handoff.latents(round)
        estimates = placement.run(round, inputs, levels, every_chunk(round, TEXT))
        handoff.advance(round, estimates)
    stages = [3, 2, 1, 0]
    latents = torch.cat([inputs[s] for s in stages], 1)[None]
    times = torch.tensor([[levels[s].timestep for s in stages for _ in range(3)]], dtype=torch.float64)
    velocity = DIT(latents, times, text_features(), attend="causal")
    x0 = latents - times[:, None, :, None, None].float() / 1000 * velocity
    for stage, expected in zip(stages, x0[0].split(3, dim=1), strict=True):
        assert (estimates[stage] - expected).abs().max() <= 1e-5
