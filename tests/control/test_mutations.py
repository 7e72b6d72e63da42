"""Each invariant's guard, removed in turn, is caught by the random events of `test_invariants`."""

from __future__ import annotations

import pytest
from hypothesis import Phase
from support.stream_machine import check

from wavecore.control.speculative import Controller
from wavecore.control.speculative import events as ev
from wavecore.control.speculative.dispatch import Dispatcher
from wavecore.control.speculative.guards import Guards
from wavecore.control.speculative.playback import Playback
from wavecore.control.speculative.state import State


def without(condition):
    """F_j without one of its conditions."""
    return tuple(pair for pair in Guards._conditions if pair[0] != condition)


def overwrite_what_is_irrevocable(patch):
    patch.setattr(State, "fixed", property(lambda self: 0))
    patch.setattr(Guards, "_conditions", without("not locked"))


def leave_the_replaced_suffix_valid(patch):
    patch.setattr(State, "cut", lambda self, first: {})


def continue_without_context(patch):
    patch.setattr(State, "end", property(lambda self: self.pixels_end))
    patch.setattr(Guards, "_conditions", without("context ready"))


def decode_without_a_snapshot(patch):
    end = property(lambda self: min(self.pixels_end, self.context_end))
    patch.setattr(State, "end", end)
    patch.setattr(Guards, "_conditions", without("valid VAE"))


def launch_beside_a_job(patch):
    handle = Controller.handle

    def twice(self, event):
        outputs = handle(self, event)
        if self.state.job is not None and not self.closed and self.playback.begun:
            self.dispatcher.dispatch(self._time)
        return outputs

    patch.setattr(Controller, "handle", twice)


def launch_without_regard_to_deadlines(patch):
    patch.setattr(Guards, "in_time", lambda self, position, time: 0)


def refill_at_any_time(patch):
    patch.setattr(Guards, "refill_time", lambda self: 0)


def accept_callbacks_of_other_jobs(kind):
    def mutation(patch):
        name = "_ready" if kind is ev.Ready else "_finish"
        original = getattr(Controller, name)

        def any_job(self, event, time):
            number = event.job if self.state.job is None else self.state.job.number
            values = (event.group, event.parts) if kind is ev.Ready else ()
            original(self, kind(event.time, number, *values), time)

        patch.setattr(Controller, name, any_job)

    return mutation


def cut_before_anything_is_there(patch):
    patch.setattr(Dispatcher, "may_cut", lambda self, job: self._playback.begun)


def cut_within_a_chunk(patch):
    cut = Guards.cut

    def anywhere(self, job, time):
        self._chunk = 1
        return cut(self, job, time)

    patch.setattr(Guards, "cut", anywhere)


def cut_without_regard_to_what_goes_on(patch):
    patch.setattr(Guards, "late_in_flight", lambda self, job, position: 0)


def cut_within_what_a_job_builds_on(patch):
    cut = Guards.cut

    def anywhere(self, job, time):
        self._state.locked = 0
        position, rejected = cut(self, job, time)
        self._state.locked = job.position
        return position, rejected

    patch.setattr(Guards, "cut", anywhere)
    patch.setattr(Guards, "in_time", lambda self, position, time: 0)


def lose_a_position_of_playback(patch):
    display = State.display

    def twice(self):
        display(self)
        self.cursor += 1

    patch.setattr(State, "display", twice)


def branch_out_of_phase(patch):
    patch.setattr(Guards, "context_ready", lambda self, position: position <= self._state.context_end)
    conditions = [("context ready", Guards.context_ready), *without("context ready")]
    patch.setattr(Guards, "_conditions", tuple(conditions))


def show_before_it_is_due(patch):
    tick = Playback.tick

    def early(self, time):
        if self.begun:
            self._due = min(self._due, time)
        return tick(self, time)

    patch.setattr(Playback, "tick", early)


def show_before_it_is_ready(patch):
    publish = State.publish
    patch.setattr(
        State,
        "publish",
        lambda self, position, prediction, parts: publish(self, position, prediction, parts | ev.PIXELS),
    )


def keep_silent_about(kind):
    def mutation(patch):
        handle = Controller.handle
        patch.setattr(
            Controller,
            "handle",
            lambda self, event: [o for o in handle(self, event) if not isinstance(o, kind)],
        )

    return mutation


MUTATIONS = {
    "1 irrevocable positions": overwrite_what_is_irrevocable,
    "2 replaced suffix": leave_the_replaced_suffix_valid,
    "2 missing context": continue_without_context,
    "3 two jobs": launch_beside_a_job,
    "3 deadlines": launch_without_regard_to_deadlines,
    "3 refill": refill_at_any_time,
    "1 cut: locked positions": cut_within_what_a_job_builds_on,
    "3 cut: what goes on": cut_without_regard_to_what_goes_on,
    "3 cut: chunks": cut_within_a_chunk,
    "3 cut: first chunk": cut_before_anything_is_there,
    "4 stale ready": accept_callbacks_of_other_jobs(ev.Ready),
    "4 stale finish": accept_callbacks_of_other_jobs(ev.Finish),
    "5 cursor": lose_a_position_of_playback,
    "5 phase": branch_out_of_phase,
    "6 early display": show_before_it_is_due,
    "6 unready display": show_before_it_is_ready,
    "7 decoder snapshot": decode_without_a_snapshot,
    "8 missed deadlines": keep_silent_about(ev.Missed),
    "8 fates of updates": keep_silent_about(ev.Settled),
    "8 discards": keep_silent_about(ev.Discard),
    "8 fallbacks": keep_silent_about(ev.FellBack),
    "8 decisions": keep_silent_about(ev.Decision),
    "8 underruns": keep_silent_about(ev.Underrun),
}


@pytest.mark.parametrize("mutation", MUTATIONS.values(), ids=MUTATIONS.keys())
def test_a_removed_guard_is_caught(mutation, monkeypatch):
    mutation(monkeypatch)
    with pytest.raises((AssertionError, KeyError)):
        # The rarest takes 300 sequences on average; the first that is found ends the search.
        check(
            10_000,
            40,
            phases=[Phase.generate],
            derandomize=True,
            database=None,
            print_blob=False,
            report_multiple_bugs=False,
        )
