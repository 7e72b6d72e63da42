"""Inputs and outputs of a controller as entries of the event log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, get_args

import msgspec

from wavecore.control.clock import MILLISECOND, SECOND
from wavecore.control.speculative import events as ev
from wavecore.control.speculative.conditions import Gradual
from wavecore.errors import InputError

if TYPE_CHECKING:
    from wavecore.trace import Kind, Trace

_KINDS: dict[type, Kind] = {
    ev.Accepted: "prompt",
    ev.Launch: "launch",
    ev.JobEnd: "job",
    ev.Commit: "commit",
    ev.Display: "display",
    ev.Underrun: "underrun",
    ev.Discard: "discard",
    ev.Decision: "decide",
    ev.FellBack: "fallback",
    ev.Shelve: "fallback",
    ev.Restore: "fallback",
    ev.Resume: "fallback",
    ev.Missed: "late",
    ev.Settled: "update",
    ev.Ignored: "ignore",
    ev.Begin: "begin",
    ev.Cancel: "cancel",
    ev.Ended: "finish",
}
_EVENTS: dict[str, type] = {kind.__name__: kind for kind in get_args(ev.Event)}
_PARTS = {ev.LATENT: "latent", ev.CONTEXT: "context", ev.PIXELS: "pixels", ev.SNAPSHOT: "snapshot"}
_TIMES = ("coverage", "lead", "delay", "late", "startup", "start")


def record_event(trace: Trace, event: ev.Event) -> None:
    """Record an event that the controller is told; `read_event` reads it back."""
    data = msgspec.structs.asdict(event)
    if isinstance(event, ev.Update):
        data["condition"] = str(event.condition)
        if isinstance(event.condition, Gradual):
            data["transition"] = event.condition.chunks
    trace.record(
        "input", time=event.time / SECOND, track="controller", event=type(event).__name__, values=data
    )


def read_event(data: dict[str, Any]) -> ev.Event:
    """Return the event that `record_event` recorded with this data.

    Raises
    ------
    InputError
        It is not an event.
    """
    try:
        values = dict(data["values"])
        transition = values.pop("transition", None)
        if transition is not None:
            values["condition"] = Gradual(values["condition"], transition)
        event: ev.Event = _EVENTS[data["event"]](**values)
    except (KeyError, TypeError, ValueError):
        raise InputError(f"expected an event of the controller, got {data}") from None
    return event


def record(trace: Trace, output: ev.Output, **more: Any) -> None:
    """Record one output. Positions become groups, durations seconds, shortfalls milliseconds."""
    data: dict[str, Any] = msgspec.structs.asdict(output)
    time, duration = data.pop("time"), 0
    kind = _KINDS.get(type(output), "publish")
    if isinstance(output, ev.Settled):
        data = output.record.as_dict()
    else:
        data |= {name: data[name] / SECOND for name in _TIMES if name in data}
    if isinstance(output, ev.Publish):
        kind = "ready" if output.parts & ev.PIXELS else "publish"
        data["parts"] = [name for part, name in _PARTS.items() if output.parts & part]
    elif isinstance(output, ev.JobEnd):
        time, duration = output.start, output.time - output.start
        del data["start"]
    elif isinstance(output, ev.Decision):
        data["rejected"] = [
            {"group": r.position, "guard": r.guard, "short_ms": r.short / MILLISECOND}
            for r in output.rejected
        ]
    elif isinstance(output, ev.Shelve | ev.Restore | ev.Resume):
        data["fallback"] = type(output).__name__.lower()
    if "position" in data:
        data["group"] = data.pop("position")
    if "condition" in data:
        data["condition"] = str(data["condition"])
    track = "worker" if kind == "job" else "controller"
    trace.record(kind, time=time / SECOND, duration=duration / SECOND, track=track, **data, **more)
