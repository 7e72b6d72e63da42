"""A recorded session again: under control "free", each chunk follows the prompt that it followed."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from wavecore.errors import InputError
from wavecore.interactive.replay import Recording, Replayed, read_recording, replay
from wavecore.pipeline import Pipeline
from wavecore.recording import fingerprint
from wavecore.session import FrameGroup, Session, frame_hash
from wavecore.trace import Event, read_events


@dataclass(frozen=True)
class FreeRecording:
    """What a log says about a session under control "free".

    Attributes
    ----------
    description : dict
        Model, seed, sizes, parameters.
    prompts : sequence of dict
        Version, prompt and transition, in the order in which they were asked for.
    versions : dict of int by chunk
        Prompt version that each chunk followed as it entered.
    ready : sequence of dict
        Groups: number, version, frames, hash.
    """

    description: dict[str, Any]
    prompts: Sequence[dict[str, Any]]
    versions: dict[int, int]
    ready: Sequence[dict[str, Any]]

    @property
    def hashes(self) -> dict[int, str]:
        """Of the frames of each group."""
        return {group["group"]: group["hash"] for group in self.ready}


def read_log(path: str | os.PathLike[str]) -> Recording | FreeRecording:
    """Read the log of a session.

    Raises
    ------
    InputError
        The log cannot be read, or is of something that cannot be replayed; says why.
    """
    events = list(read_events(path))
    session = next((event for event in events if event.kind == "session"), None)
    if session is None:
        if any(event.kind == "encode" for event in events):
            raise InputError(
                f"{path}: expected a session that makes frames of prompts alone, got one that restyles: "
                "what it restyled is not in its log"
            )
        raise InputError(f"{path}: expected the log of a session, got none")
    free = session.data.get("control") == "free"
    recording = _read_free(path, session.data, events) if free else read_recording(path)
    if not recording.hashes:
        raise InputError(f"{path}: expected a session that made frames, got one that ended before")
    return recording


def _read_free(
    path: str | os.PathLike[str], description: dict[str, Any], events: Sequence[Event]
) -> FreeRecording:
    ready = [event.data for event in events if event.kind == "ready"]
    if any("hash" not in group for group in ready):
        raise InputError(f"{path}: expected a hash of each group of frames, got groups without one")
    versions = {event.data["chunk"]: event.data["version"] for event in events if event.kind == "admit"}
    prompts = [event.data for event in events if event.kind == "prompt"]
    return FreeRecording(description, prompts, versions, ready)


def replay_log(
    recording: Recording | FreeRecording,
    pipe: Pipeline,
    show: Callable[[FrameGroup], None] = lambda group: None,
) -> Replayed:
    """Run a recorded session again.

    Parameters
    ----------
    recording : Recording or FreeRecording
    pipe : Pipeline
        With the model that was recorded.
    show : callable
        Gets every group that is shown again.

    Raises
    ------
    InputError
        It is another model.
    """
    stated = recording.description
    if isinstance(recording, Recording):
        rules, levels = pipe.rules(stated["rounds"], stated["steps"]), pipe.levels(stated["steps"])
        return replay(recording, pipe.model, rules, levels, show)
    if stated["fingerprint"] != fingerprint(pipe.model):
        raise InputError(f"model: expected the recorded {stated['model']}, got one with other weights")
    return _replay(recording, pipe, show)


def _replay(recording: FreeRecording, pipe: Pipeline, show: Callable[[FrameGroup], None]) -> Replayed:
    stated, asked = recording.description, list(recording.prompts)
    session = pipe.session(
        asked.pop(0)["prompt"],
        seed=stated["seed"],
        steps=stated["steps"],
        num_frames=stated["num_frames"],
        size=tuple(stated["size"]),
        fps=stated["fps"],
        rounds=stated["rounds"],
        placement=stated["placement"],
        devices=stated["devices"],
        split=stated["split"] if stated["placement"] == "sequence" else None,
    )
    assert isinstance(session, Session)

    def ask(chunk: int) -> None:
        """Ask for what the recorded session was asked for before this chunk entered."""
        version = recording.versions.get(chunk, -1)
        while asked and asked[0]["version"] <= version:
            prompt = asked.pop(0)
            session.update(prompt["prompt"], prompt["transition"])

    session.on_admit = ask
    result, hashes = Replayed(), recording.hashes
    made: list[dict[str, Any]] = []
    with session:
        for group in islice(session, len(recording.ready)):
            made.append({"version": group.version, "frames": len(group.frames)})
            if hashes.pop(group.index, None) != frame_hash(group.frames):
                result.different.append(group.index)
            result.groups += 1
            show(group)
    result.different += sorted(hashes)
    result.totals = statistics(made)
    result.same_totals = result.totals == statistics(recording.ready)
    return result


def statistics(groups: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Groups and frames that were made, and how many of each prompt version."""
    of_version = Counter[int]()
    for group in groups:
        of_version[group["version"]] += group["frames"]
    return {"groups": len(groups), "frames": of_version.total(), "frames_of_version": dict(of_version)}
