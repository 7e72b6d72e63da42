"""Processes that stay: a model loaded once, and a queue of requests that follow each other without a gap."""

from __future__ import annotations

import itertools
import math
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from wavecore.arguments import whole
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.bundle import StreamModel
from wavecore.placement.nursery import Nursery
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.prompt import check_prompt
from wavecore.replica_session import ReplicaSession
from wavecore.rounds import NoiseLevel, Rules
from wavecore.session import FrameGroup
from wavecore.trace import Trace

_OVER = None


@dataclass(frozen=True)
class Request:
    """A video that is asked for.

    Attributes
    ----------
    prompt : str
    num_frames : int
    seed : int
    prompts : sequence of (float, str)
        Later prompts, each asked for when the video reaches its time in seconds.
    """

    prompt: str
    num_frames: int
    seed: int = 0
    prompts: Sequence[tuple[float, str]] = ()

    def __post_init__(self) -> None:
        check_prompt(self.prompt)
        whole("num_frames", self.num_frames, 1)
        whole("seed", self.seed, 0, 2**63 - 1)
        for at, text in self.prompts:
            if not isinstance(at, (int, float)) or not 0 <= at < math.inf:
                raise UsageError(f"prompts: expected times of at least 0 seconds, got {at!r}")
            check_prompt(text)


@dataclass(eq=False)
class Ticket:
    """A request in the queue, at work or over. Iterate for its frame groups, as they are made."""

    number: int
    request: Request
    _groups: queue.SimpleQueue[FrameGroup | Exception | None] = field(default_factory=queue.SimpleQueue)
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Give the request up, whether it has begun or not; its iteration then ends."""
        self._cancelled.set()

    def __iter__(self) -> Iterator[FrameGroup]:
        """Yields frame groups.

        Raises
        ------
        WavecoreError
            A rank has ended under it, which is named; requests after it are served. Or the launcher was
            closed before it began.
        """
        while (group := self._groups.get()) is not _OVER:
            if isinstance(group, Exception):
                raise group
            yield group
        self._groups.put(_OVER)  # for whoever iterates again


class Launcher:
    """Serves requests in order on stages that stay, and starts them again when one has ended.

    Two requests are at work at a time: while one drains, the next one fills the stages that are free.

    Parameters
    ----------
    model : StreamModel
    rules : Wavefront
    levels : sequence of NoiseLevel
    size : (width, height)
        Pixels.
    fps : float
    options : ReplicaOptions, optional
    trace : Trace, optional
    """

    def __init__(
        self,
        model: StreamModel,
        rules: Rules,
        levels: Sequence[NoiseLevel],
        size: tuple[int, int],
        fps: float,
        options: ReplicaOptions | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._model, self._rules, self._levels = model, rules, levels
        self._size, self._fps, self._options, self._trace = size, fps, options, trace
        self._numbers = itertools.count()
        self._queue: queue.SimpleQueue[Ticket | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # of the stages, and of the order in which streams are queued on them
        self._gate = threading.Lock()  # of the queue's end
        self._closed = False
        self._nursery = Nursery(model.dit)
        self._replicas: Replicas | None = None
        self.restarts = 0
        self._threads = [threading.Thread(target=self._serve, daemon=True) for _ in range(2)]
        try:
            self._running()
        except BaseException:
            self._nursery.close()
            raise
        for thread in self._threads:
            thread.start()

    def submit(self, request: Request) -> Ticket:
        """Queue a request.

        Raises
        ------
        UsageError
            The launcher is closed.
        """
        ticket = Ticket(next(self._numbers), request)
        with self._gate:
            if self._closed:
                raise UsageError("launcher: expected an open one, got a closed one")
            self._queue.put(ticket)
        return ticket

    @property
    def pids(self) -> list[int]:
        """Processes of the stages."""
        return [] if self._replicas is None else self._replicas.pids

    def close(self) -> None:
        """Finish what is at work, give up what waits, and end the stages."""
        with self._gate:
            self._closed = True
            for _ in self._threads:
                self._queue.put(None)
        for thread in self._threads:
            thread.join()
        if self._replicas is not None:
            self._replicas.close()
        self._nursery.close()

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _running(self) -> Replicas:
        """Stages that work; new ones when those there have failed."""
        if self._replicas is not None and not self._replicas.failed:
            return self._replicas
        if self._replicas is not None:
            self._replicas.close()
            self.restarts += 1
        factor = self._model.vae.spatial_factor
        latent = (
            self._model.dit.config.in_channels,
            self._size[1] // factor,
            self._size[0] // factor,
        )
        self._replicas = Replicas(
            self._model.dit, self._rules, latent, self._options, self._trace, self._nursery
        )
        return self._replicas

    def _serve(self) -> None:
        while True:
            with self._lock:  # streams come to the stages in the order of the queue
                ticket = self._queue.get()
                if ticket is None:
                    return
                session, fault = self._open(ticket)
            if session is not None:
                fault = self._run(ticket, session)
            if fault is not None:
                ticket._groups.put(fault)
            ticket._groups.put(_OVER)

    def _open(self, ticket: Ticket) -> tuple[ReplicaSession | None, Exception | None]:
        if ticket._cancelled.is_set():
            return None, None
        if self._closed:
            return None, WavecoreError("launcher: closed before the request began")
        request = ticket.request
        try:
            return self._guarded(
                lambda: ReplicaSession(
                    self._model,
                    request.prompt,
                    self._rules,
                    self._levels,
                    request.seed,
                    self._size,
                    self._fps,
                    request.num_frames,
                    trace=self._trace,
                    replicas=self._running(),
                )
            ), None
        except Exception as error:  # whatever it is, it is its request's alone
            return None, error

    def _guarded(self, make: Callable[[], ReplicaSession]) -> ReplicaSession:
        """Make a session; once more when the stages fail at that very moment."""
        try:
            return make()
        except WavecoreError:
            if self._replicas is None or not self._replicas.failed:
                raise
            return make()

    def _run(self, ticket: Ticket, session: ReplicaSession) -> Exception | None:
        due = sorted(ticket.request.prompts)
        frames = 0
        try:
            with session:
                while not ticket._cancelled.is_set():
                    while due and due[0][0] <= frames / self._fps:
                        session.update(due.pop(0)[1])
                    group = next(session, None)
                    if group is None:
                        break
                    frames += len(group.frames)
                    ticket._groups.put(group)
        except Exception as error:  # as above
            return error
        return None
