"""Opens streams on a loaded model. Loading happens in the background: the server answers meanwhile."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from wavecore.errors import UsageError
from wavecore.serve.admission import Admission, Cost
from wavecore.serve.feed import ImageFeed
from wavecore.serve.protocol import Start
from wavecore.serve.settings import ServeSettings
from wavecore.serve.stream import FollowedTrace, PacedStream, SpeculativeStream, Stream
from wavecore.trace import Event, Trace

if TYPE_CHECKING:
    from wavecore.interactive.speculation import Speculation
    from wavecore.pipeline import Pipeline
    from wavecore.placement.device import SharedDevice
    from wavecore.session import Session

_WARM_GROUPS = 8
_PROMPT = "a red ball"
_STEPS = 4  # of a usual session
_MARGIN = 0.005  # seconds; a group that comes late is held for as long as it is late
_LEARN_CALLS = 5


class Engine(Protocol):
    """What the server needs of a model.

    Attributes
    ----------
    model : str
        Name under which clients see it.
    """

    model: str

    def load(self) -> Cost:
        """Load and warm up; measures what a session costs."""

    def size(self, start: Start) -> tuple[int, int]:
        """Width and height that a stream will have."""

    def open(self, start: Start, follow: Callable[[Event], None], feed: ImageFeed | None) -> Stream:
        """Open a stream; `follow` gets its events."""

    def make_video(self, start: Start, seconds: float, path: Path, progress: Callable[[float], None]) -> None:
        """Write a clip; `progress` is told the share done, and raises to stop."""


class PipelineEngine:
    """Streams of a pipeline.

    Parameters
    ----------
    settings : ServeSettings
    """

    def __init__(self, settings: ServeSettings) -> None:
        self.model = settings.model
        self._settings = settings
        self._pipe: Pipeline | None = None
        self._shared: SharedDevice | None = None
        self._speculation: Speculation
        self._opening = threading.Lock()

    @property
    def pipe(self) -> Pipeline:
        """The loaded pipeline."""
        assert self._pipe is not None, "load first"
        return self._pipe

    def load(self) -> Cost:
        """See `Engine`; measures a free-running stream after a first group, which pays for caches."""
        import torch

        settings = self._settings
        if settings.device == "cpu":
            # A core is left to what is not the model, or every pass waits for the thread that shares one.
            torch.set_num_threads(max(1, torch.get_num_threads() - 1))
        pipe = settings.load()
        with pipe.session(_PROMPT) as session:
            list(itertools.islice(session, _WARM_GROUPS))
        began = time.monotonic()
        with pipe.session(_PROMPT) as session:
            next(session)
            first = time.monotonic() - began
            began = time.monotonic()
            list(itertools.islice(session, _WARM_GROUPS))
            each = (time.monotonic() - began) / _WARM_GROUPS
        self._pipe = pipe
        group = pipe.model.vae.temporal_factor / pipe.fps
        cost = Cost(first, each / group, group)
        self._share(Admission(cost, settings.latency_objective, settings.slots).sessions, group)
        self._speculation = self._learn()
        return cost

    def _learn(self) -> Speculation:
        """Parameters of usual speculative sessions, with the time that their calls take.

        On a causal model a call is one chunk: a prompt then waits for little, and replaces little.
        """
        from wavecore.interactive.speculation import Speculation

        defaults = self.pipe.model.defaults
        if defaults.joint_latents is not None:
            return Speculation()
        speculation = Speculation(latents=defaults.chunk_frames, margin=_MARGIN)
        launches: dict[int, float] = {}
        times: dict[int, list[float]] = {}

        def follow(event: Event) -> None:
            data = event.data
            if event.kind == "launch" and data["reason"] != "bootstrap":
                launches[data["job"]] = event.time
            elif event.kind == "ready" and data.get("job") in launches:
                times.setdefault(data["group"] % defaults.chunk_frames, []).append(
                    event.time - launches[data["job"]]
                )

        with self.pipe.session(
            _PROMPT,
            control="speculative",
            speculation=replace(speculation, pacing="virtual"),
            trace=FollowedTrace(follow),
            shared=self._shared,
        ) as session:
            list(itertools.islice(session, _LEARN_CALLS * defaults.chunk_frames))
        prior = [max(values) for _, values in sorted(times.items())]
        return replace(speculation, prior=prior if len(prior) == defaults.chunk_frames else None)

    def _share(self, sessions: int, objective: float) -> None:
        """Let sessions run their rounds in common batches, where there can be several and that is faster."""
        from wavecore.serve.sharing import device_if_faster

        defaults = self.pipe.model.defaults
        if sessions > 1 and defaults.joint_latents is None:
            chunk = defaults.chunk_frames
            self._shared = device_if_faster(self.pipe, sessions, chunk, _STEPS, objective)

    def _shared_by(self, start: Start) -> SharedDevice | None:
        """What runs a session: the shared device, unless its rounds are of another kind than the others'."""
        room = self._shared is not None and not self._shared.full
        return self._shared if room and self._is_usual(start) else None

    def _is_usual(self, start: Start) -> bool:
        """Whether the calls of a session are like those that were measured."""
        return start.size in (None, self.pipe.size) and start.rounds is None and start.steps == _STEPS

    def _speculation_of(self, start: Start) -> Speculation:
        return self._speculation if self._is_usual(start) else replace(self._speculation, prior=None)

    def size(self, start: Start) -> tuple[int, int]:
        """See `Engine`."""
        return start.size or self.pipe.size

    def open(self, start: Start, follow: Callable[[Event], None], feed: ImageFeed | None) -> Stream:
        """See `Engine`."""
        pipe = self.pipe
        trace = FollowedTrace(follow)
        size, group = self.size(start), pipe.model.vae.temporal_factor
        if feed is not None:
            if start.control == "speculative":
                raise UsageError("control: expected free with images, got speculative")
            frames = feed

            def restyle(inner: Trace) -> Session:
                return pipe.restyle(
                    frames,
                    start.prompt,
                    seed=start.seed,
                    steps=start.steps,
                    strength=start.strength,
                    size=size,
                    fps=start.fps,
                    rounds=start.rounds,
                    placement=start.placement,
                    trace=inner,
                )

            return PacedStream(restyle, trace, size, group, pipe.model.defaults.chunk_frames, live=True)
        rounds = start.rounds or pipe.model.defaults.rounds
        control = start.control or ("free" if rounds == "stream_batch" else "speculative")

        def session(trace: Trace) -> Any:  # a Session or a SpeculativeSession, by control
            return pipe.session(
                start.prompt,
                seed=start.seed,
                steps=start.steps,
                size=size,
                fps=start.fps,
                rounds=start.rounds,
                placement=start.placement,
                control=control,
                speculation=self._speculation_of(start) if control == "speculative" else None,
                trace=trace,
                shared=self._shared_by(start) if control == "speculative" else None,
            )

        if control == "speculative":
            with self._opening:
                return SpeculativeStream(session(trace), size, group)
        return PacedStream(session, trace, size, group, pipe.model.defaults.chunk_frames)

    def make_video(self, start: Start, seconds: float, path: Path, progress: Callable[[float], None]) -> None:
        """See `Engine`."""
        from wavecore.media import VideoWriter

        pipe = self.pipe
        fps = start.fps or pipe.fps
        total = max(1, round(seconds * fps))
        done = 0
        with (
            pipe.session(
                start.prompt,
                seed=start.seed,
                steps=start.steps,
                size=self.size(start),
                num_frames=total,
                fps=fps,
                rounds=start.rounds,
            ) as session,
            VideoWriter(path, fps) as writer,
        ):
            for group in session:
                writer.write(group.frames)
                done += len(group.frames)
                progress(done / total)
