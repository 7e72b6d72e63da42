"""A recorded session again: the same events give the same decisions, and with the seed the same frames."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from wavecore.control.speculative import UnitCosts
from wavecore.control.speculative.events import Commit, Display, Ended, Event, Ready
from wavecore.control.speculative.log import read_event
from wavecore.errors import InputError
from wavecore.interactive.session import Delivery
from wavecore.interactive.speculation import Speculation, make_parts
from wavecore.interactive.worker import RecordedWorker, Stopped
from wavecore.models.bundle import StreamModel
from wavecore.placement.calls import same_place
from wavecore.recording import fingerprint
from wavecore.rounds import NoiseLevel, Rules
from wavecore.session import FrameGroup
from wavecore.trace import read_events


@dataclass(frozen=True)
class Recording:
    """What a log says about a speculative session.

    Attributes
    ----------
    description : dict
        Model, seed, sizes, parameters.
    inputs : list of Event
        Everything the controller was told.
    stopped : list of Stopped
        Calls that did not run to their end.
    hashes : dict of str by position
        Of the frames that were shown.
    totals : dict or None
        Statistics at the end; None where the log ends before.
    """

    description: dict[str, Any]
    inputs: list[Event]
    stopped: list[Stopped]
    hashes: dict[int, str]
    totals: dict[str, Any] | None

    @property
    def speculation(self) -> Speculation:
        """Parameters of the session."""
        stated = dict(self.description["speculation"])
        if stated.get("costs") is not None:
            stated["costs"] = UnitCosts(**stated["costs"])
        return Speculation(**stated)


def read_recording(path: str | os.PathLike[str]) -> Recording:
    """Read the log of a session with speculative control.

    Raises
    ------
    InputError
        The log cannot be read, or is of something else.
    """
    description: dict[str, Any] | None = None
    inputs: list[Event] = []
    stopped: list[Stopped] = []
    hashes: dict[int, str] = {}
    totals = None
    for number, event in enumerate(read_events(path), 1):
        if event.kind == "session":
            description = event.data
        elif event.kind == "input":
            try:
                inputs.append(read_event(event.data))
            except InputError as error:
                raise InputError(f"{path}: line {number}: {error}") from None
        elif event.kind == "stop":
            stopped.append(Stopped(**event.data))
        elif event.kind == "display" and "hash" in event.data:
            hashes[event.data["group"]] = event.data["hash"]
        elif event.kind == "finish" and "totals" in event.data:
            totals = event.data["totals"]
    if description is None:
        raise InputError(f"{path}: expected the log of a session with control speculative, got none")
    return Recording(description, inputs, stopped, hashes, totals)


@dataclass
class Replayed:
    """What became of a replay.

    Attributes
    ----------
    groups : int
        Shown again.
    different : list of int
        Positions whose frames differ, or that were shown in one of the two only.
    totals : dict
        Statistics.
    same_totals : bool
        Whether they are those of the recording, where it has any.
    """

    groups: int = 0
    different: list[int] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)
    same_totals: bool = True


def replay(
    recording: Recording,
    model: StreamModel,
    rules: Rules,
    levels: Sequence[NoiseLevel],
    show: Callable[[FrameGroup], None] = lambda group: None,
) -> Replayed:
    """Tell a controller what the recorded one was told, and make its calls again.

    Parameters
    ----------
    recording : Recording
    model : StreamModel
        The one that was recorded.
    rules : Rules
    levels : sequence of NoiseLevel
    show : callable
        Gets every group that is shown again.

    Raises
    ------
    InputError
        It is another model.
    """
    stated = recording.description
    if stated.get("placement") == "shared":
        raise InputError(
            "placement: expected a session that ran alone, got one whose batches held others too"
        )
    if stated["fingerprint"] != fingerprint(model):
        raise InputError(f"model: expected the recorded {stated['model']}, got one with other weights")
    fps, num_frames = stated["fps"], stated["num_frames"]
    width, height = stated["size"]
    joint = model.defaults.joint_latents is not None
    place = None if joint else same_place(model.dit, stated.get("placement", "local"))
    parts = make_parts(
        model, recording.speculation, rules, levels, stated["seed"], (width, height), fps, place
    )
    reports = Counter(event.job for event in recording.inputs if isinstance(event, Ready))
    worker = RecordedWorker(parts.generator, reports, recording.stopped)
    delivery = Delivery(parts, fps, model.vae.temporal_factor, num_frames)
    result = Replayed()
    hashes = dict(recording.hashes)
    try:
        for event in recording.inputs:
            for output in parts.controller.handle(event):
                if isinstance(output, Commit):
                    delivery.commit(output)
                    worker.branches.committed = output.position + 1
                elif isinstance(output, Display):
                    group, digest = delivery.display(output)
                    if hashes.pop(output.position, None) != digest:
                        result.different.append(output.position)
                    result.groups += 1
                    show(group)
                elif not isinstance(output, Ended):
                    worker.perform(output)
    finally:
        worker.close()
    result.different += sorted(hashes)
    result.totals = parts.controller.totals.as_dict()
    result.same_totals = recording.totals is None or recording.totals == result.totals
    return result
