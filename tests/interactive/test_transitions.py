"""From one prompt to the next over several chunks, under speculative control."""

from __future__ import annotations

import pytest
import torch
from support.generators import NEW, OLD, ORDERS, causal, latents, make
from support.sessions import play, start

from wavecore.control.speculative.conditions import Gradual
from wavecore.errors import UsageError
from wavecore.interactive.conditions import Mixture
from wavecore.interactive.replay import read_recording, replay
from wavecore.trace import Trace


def shares(generator, first):
    """Share of the new prompt that each latent follows."""
    followed = [generator.predictions[p].prompt for p in generator.predictions if p >= first]
    return [f.share if isinstance(f, Mixture) else float(f == NEW) for f in followed]


@pytest.mark.parametrize("order", ORDERS)
def test_chunks_go_over_evenly_and_a_later_call_goes_on(pipe, order):
    generator, prompt = causal(pipe, order), Gradual(NEW, 4)
    chunk = generator.rules.chunk_frames
    make(generator, 0, 9, OLD)
    make(generator, 3, 2 * chunk, prompt)
    assert shares(generator, 3) == [0.25] * chunk + [0.5] * chunk
    make(generator, 3 + 2 * chunk, 3 * chunk, prompt)
    assert shares(generator, 3 + 2 * chunk) == [0.75] * chunk + [1.0] * 2 * chunk
    at_once = causal(pipe, order)
    make(at_once, 0, 9, OLD)
    make(at_once, 3, 2 * chunk, NEW)
    assert not torch.equal(latents(generator)[3], latents(at_once)[3])


def test_a_transition_that_is_made_again_begins_again(pipe):
    generator, prompt = causal(pipe), Gradual(NEW, 3)
    make(generator, 0, 9, OLD)
    make(generator, 6, 3, prompt)
    make(generator, 4, 3, prompt)
    assert shares(generator, 4) == [1 / 3] * 3


def test_another_prompt_on_the_way_goes_on_from_the_mixture(pipe):
    generator = causal(pipe)
    make(generator, 0, 9, OLD)
    make(generator, 3, 3, Gradual(NEW, 3))
    make(generator, 6, 6, Gradual("a white box", 2))
    first, second = (generator.predictions[p].prompt for p in (6, 9))
    assert first == Mixture(Mixture(OLD, NEW, 1 / 3), "a white box", 0.5)
    assert second == "a white box"
    assert all(torch.isfinite(latent).all() for latent in latents(generator).values())


def test_the_beginning_has_nothing_to_come_from(pipe):
    generator = causal(pipe)
    make(generator, 0, 3, Gradual(NEW, 3))
    assert shares(generator, 0) == [1.0] * 3


@pytest.mark.parametrize("cut", [False, True])
def test_a_session_goes_over_and_can_be_replayed(pipe, tmp_path, cut):
    log = tmp_path / "run.jsonl"
    with Trace(log) as trace:
        session = start(pipe, rounds="wavefront", frames=141, cut=cut, trace=trace)
        gradual = Gradual(NEW, 3)
        groups, records = play(session, {4: gradual, 20: OLD})
    assert [r.outcome for r in records] == ["displayed", "displayed"]
    assert len(groups) > 25
    result = replay(read_recording(log), pipe.model, pipe.rules("wavefront", 2), pipe.levels(2))
    assert (result.different, result.same_totals) == ([], True)


def test_wrong_transitions_are_named(pipe, joint_pipe):
    with (
        start(pipe) as session,
        pytest.raises(UsageError, match="transition: expected a whole number of at least 1, got 0"),
    ):
        session.update(NEW, 0)
    with start(joint_pipe, "keyframes") as session:
        with pytest.raises(UsageError, match="transition: expected 1 with a bidirectional model, got 2"):
            session.update(NEW, 2)
        session.update(NEW, 1)
