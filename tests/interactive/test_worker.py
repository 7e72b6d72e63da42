"""A call that is cut at any moment: what is reported under which job, and what is there in the end."""

from __future__ import annotations

from itertools import islice

import pytest
import torch

from wavecore.control.speculative import events as ev
from wavecore.interactive.causal import CausalGenerator
from wavecore.interactive.worker import _Commands
from wavecore.rounds.calls import CallRules


class ByHand(_Commands):
    """Makes a step when it is asked to."""

    def _order(self, command):
        command()

    def _run(self, steps):
        self.steps = steps


def launch(job, position, groups, prompt, kept=0):
    return ev.Launch(0, job, job, prompt, position, groups, 0, "pending", kept)


@pytest.mark.parametrize("after", range(1, 16))
@pytest.mark.parametrize("position", [3, 4, 6])
def test_a_call_may_be_cut_after_any_of_its_steps(pipe, after, position):
    rules = CallRules(steps=2, order="wavefront", history=3, store_history=6)
    generator = CausalGenerator(pipe.model, rules, pipe.levels(2), 0, (64, 32), 9)
    noted = []
    worker = ByHand(generator, noted.append)
    worker.perform(launch(0, 0, 9, "a red ball"))
    late, reports = [], []
    for count, item in enumerate(worker.steps, 1):
        if item is not None:
            reports.append(item)
        if count == after:
            late = reports[:]  # not arrived yet when the controller cuts
            worker.perform(ev.JobEnd(0, 0, 0, "cut"))
            worker.perform(launch(1, position, 6, "a blue star"))
    events = [item(0) for item in reports]
    made = {}
    for event in events[:-1]:
        if event.job == 1:
            made[position + event.group] = made.get(position + event.group, 0) | event.parts
        else:
            assert event.group >= position, "only what was dropped is reported under the old job"
    assert events[-1] == ev.Finish(0, 1)
    assert {p for p in made if p >= position} == set(range(position, position + 6))
    assert all(made[p] == ev.COMPLETE for p in range(position, position + 6))
    assert [(stop.job, stop.by) for stop in noted] == [(0, 1)]
    assert {generator.predictions[p].prompt for p in range(position, position + 6)} == {"a blue star"}
    assert all(torch.isfinite(generator.predictions[p].latent).all() for p in generator.predictions)
    assert len(late) <= len(reports)


@pytest.mark.parametrize("cut", [False, True])
def test_a_call_that_fails_is_followed_by_what_was_to_take_its_place(pipe, monkeypatch, cut):
    """Left waiting, that would take the place of a later call."""
    rules = CallRules(steps=2, order="wavefront", history=3, store_history=6)
    generator = CausalGenerator(pipe.model, rules, pipe.levels(2), 0, (64, 32), 9)
    noted = []
    worker = ByHand(generator, noted.append)
    call = worker.branches.call

    def failing(started):
        yield from islice(call(started), 8)
        if cut:
            worker.perform(ev.JobEnd(0, 0, 0, "cut"))
            worker.perform(launch(1, 3, 6, "a blue star"))
        raise RuntimeError("out of memory")

    monkeypatch.setattr(worker.branches, "call", lambda started: (call if started.job else failing)(started))
    worker.perform(launch(0, 0, 9, "a red ball"))
    events = [item(0) for item in worker.steps if item is not None]
    if not cut:
        assert events[-1] == ev.Failed(0, 0, "RuntimeError: out of memory")
        assert [(stop.job, stop.by) for stop in noted] == [(0, None)]
        return
    assert events[-1] == ev.Finish(0, 1) and not any(isinstance(event, ev.Failed) for event in events)
    assert [(stop.job, stop.by, stop.spliced) for stop in noted] == [(0, 1, False)]
    assert {generator.predictions[position].prompt for position in range(3, 9)} == {"a blue star"}


def test_what_is_to_be_kept_is_of_one_launch_alone(pipe, monkeypatch):
    """A call that goes on as another one keeps nothing, and leaves that to no later one."""
    rules = CallRules(steps=2, order="wavefront", history=3, store_history=6)
    worker = ByHand(CausalGenerator(pipe.model, rules, pipe.levels(2), 0, (64, 32), 9))
    kept, begin = [], worker.branches.begin

    def noted(started, keep):
        kept.append((started.job, keep))
        begin(started, keep)

    monkeypatch.setattr(worker.branches, "begin", noted)
    worker.perform(launch(0, 0, 9, "a red ball"))
    next(worker.steps)
    worker.perform(ev.JobEnd(0, 0, 0, "cut"))
    worker.perform(ev.Shelve(0, 3, 9))
    worker.perform(launch(1, 3, 6, "a blue star"))
    list(worker.steps)
    for job, position in ((2, 9), (3, 12)):
        if job == 3:
            worker.perform(ev.Shelve(0, 12, 15))
        worker.perform(launch(job, position, 3, "a green box"))
        list(worker.steps)
    assert kept == [(0, False), (2, False), (3, True)]
