"""A stream under the speculative controller: groups come when they are due, updates are answered at once."""

from __future__ import annotations

import atexit
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from wavecore.control.clock import SECOND, VirtualClock, WallClock
from wavecore.control.speculative import Horizon, Totals, UpdateRecord
from wavecore.control.speculative import log as event_log
from wavecore.control.speculative.conditions import Gradual
from wavecore.control.speculative.events import Close, Commit, Display, Ended, Event, Output, Wake
from wavecore.control.speculative.runner import Item, Runner
from wavecore.errors import UsageError, WavecoreError
from wavecore.interactive.causal import CausalGenerator
from wavecore.interactive.speculation import Parts, Speculation, make_parts
from wavecore.interactive.worker import Stopped, ThreadWorker, VirtualWorker, Worker
from wavecore.lifetime import Belongings, weakly
from wavecore.models.bundle import StreamModel
from wavecore.placement.calls import CallPlace
from wavecore.prompt import check_prompt
from wavecore.recording import describe
from wavecore.rounds import NoiseLevel, Rules
from wavecore.session import FrameGroup, frame_hash
from wavecore.trace import Trace


@dataclass(frozen=True)
class Ticket:
    """An update on its way.

    Attributes
    ----------
    prompt : str
    future : Future of UpdateRecord
        Resolves when the fate of the update is known: displayed, superseded, identical or lost.
    """

    prompt: str
    future: Future[UpdateRecord]

    def result(self, timeout: float | None = None) -> UpdateRecord:
        """Wait for the record, `timeout` seconds at most."""
        return self.future.result(timeout)


class Delivery:
    """Makes frame groups of what the controller commits and displays.

    Parameters
    ----------
    parts : Parts
    fps : float
    stride : int
        Frames of a latent, but of the first, which has one.
    num_frames : int or None
        Length; endless when None.
    """

    def __init__(self, parts: Parts, fps: float, stride: int, num_frames: int | None) -> None:
        self._predictions = parts.generator.predictions
        self._fps, self._stride = fps, stride
        self.left = num_frames
        self._committed: dict[int, FrameGroup] = {}

    def commit(self, output: Commit) -> str:
        """Take the frames of a position out of what can be replaced; returns their hash."""
        position = output.position
        made = self._predictions[position]
        first = 1 + (position - 1) * self._stride if position else 0
        self._committed[position] = FrameGroup(
            made.frames, position, output.version, first / self._fps, made.latent
        )
        return frame_hash(made.frames)

    def display(self, output: Display) -> tuple[FrameGroup, str]:
        """Hand a position over; returns it and the hash of its frames."""
        group = self._committed.pop(output.position)
        digest = frame_hash(group.frames)
        if self.left is not None:
            frames = group.frames[: self.left]
            self.left -= len(frames)
            group = FrameGroup(frames, group.index, group.version, group.pts, group.latent)
        return group, digest


class SpeculativeSession:
    """One stream. Iterate for its frame groups; `update` may be called at any time, from any thread.

    Frames are made far ahead under the latest prompt, become irrevocable when they are handed over, and are
    replaced from the earliest position that a new prompt can reach. Made by `Pipeline.session`.

    Parameters
    ----------
    parts : Parts
    prompt : str
    fps : float
        Frames a second of playback.
    stride : int
        Frames of a latent.
    num_frames : int or None
    speculation : Speculation
    description : dict
        What makes the session repeatable, for the event log.
    trace : Trace, optional
    """

    def __init__(
        self,
        parts: Parts,
        prompt: str,
        fps: float,
        stride: int,
        num_frames: int | None,
        speculation: Speculation,
        description: dict[str, Any],
        trace: Trace | None = None,
    ) -> None:
        self.trace = Trace() if trace is None else trace
        self.fps = fps
        self._delivery = Delivery(parts, fps, stride, num_frames)
        self._ready: deque[FrameGroup] = deque()
        self._arrived = threading.Condition()
        self._over = False
        self._ended = ""
        self._error: BaseException | None = None
        self.trace.record("session", track="controller", prompt=prompt, **description)
        self._causal = isinstance(parts.generator, CausalGenerator)
        self._real = speculation.pacing == "real"
        self._worker: Worker
        self._wall: WallClock[Item] | None = None
        self._skips = 0
        note, perform, observe = weakly(self._note), weakly(self._perform), weakly(self._observe)
        if self._real:
            self._wall = wall = WallClock[Item]()
            self._worker = ThreadWorker(parts.generator, wall, note, speculation.job_timeout)
            self._runner = Runner(parts.controller, wall, perform, observe)
        else:
            virtual: VirtualClock[Item] = VirtualClock(round(self.trace.clock() * SECOND))
            self._worker = VirtualWorker(parts.generator, virtual, parts.adapter, speculation.costs, note)
            self._runner = Runner(parts.controller, virtual, perform, observe)
        self._runner.update(prompt)
        finish = self._runner.run
        if self._real:
            arguments = self._runner, weakly(self._stop)
            thread = threading.Thread(target=_run, args=arguments, name="wavecore-control", daemon=True)
            thread.start()
            finish = thread.join
        self._belongings = Belongings(self)
        self._belongings.add(partial(_close_worker, self._worker, self.trace))
        self._belongings.add(finish)
        self._belongings.add(self._runner.close)
        if self._real:
            # An interpreter that ends while a thread is within PyTorch aborts.
            at_exit = weakly(self.close)
            atexit.register(at_exit)
            self._belongings.add(partial(atexit.unregister, at_exit))

    # -- for the user --------------------------------------------------------------------

    def update(self, prompt: str, transition: int = 1) -> Ticket:
        """Ask for another prompt.

        Parameters
        ----------
        prompt : str
        transition : int
            Chunks over which the condition goes over evenly to the new prompt, from what is shown before; 1
            changes it at once. Bidirectional models sample a call under one condition, and take 1 only.

        Returns
        -------
        Ticket
            Its future resolves to what became of it, and how long that took.
        """
        condition = check_prompt(prompt)
        if transition != 1:
            if not self._causal:
                raise UsageError(f"transition: expected 1 with a bidirectional model, got {transition}")
            condition = Gradual(condition, transition)
        return Ticket(prompt, self._runner.update(condition))

    def pause(self) -> None:
        """Stop the clock of a session with real pacing: nothing is due until `resume`."""
        self._clock("pause").pause()

    def resume(self) -> None:
        """Let the clock go on."""
        self._clock("resume").resume()

    def skip(self) -> None:
        """Have the next position that is ready due at once."""
        clock = self._clock("skip")
        with self._arrived:
            self._skips += 1
        clock.post(self._hurry)

    @property
    def behind(self) -> float:
        """Seconds by which the session's clock is behind the machine's, from pauses."""
        return self._clock("behind").behind / SECOND

    def _clock(self, use: str) -> WallClock[Item]:
        if self._wall is None:
            raise UsageError(f"{use}: expected a session with pacing real, got virtual")
        return self._wall

    @property
    def horizon(self) -> Horizon:
        """What can still change, as ends of positions (latents): irrevocable, locked, replaceable."""
        return self._runner.horizon

    @property
    def totals(self) -> Totals:
        """Counts so far; complete when the session is closed."""
        return self._runner.controller.totals

    def __iter__(self) -> SpeculativeSession:
        return self

    def __next__(self) -> FrameGroup:
        """Wait for the next group to be shown.

        Raises
        ------
        WavecoreError
            Calls failed too often.
        """
        with self._arrived:
            if self._real:
                self._arrived.wait_for(lambda: self._ready or self._over)
            else:
                while not self._ready and not self._runner.controller.closed:
                    self._runner.step()
            if self._ready:
                return self._ready.popleft()
        if self._error is not None:
            raise self._error
        if self._ended not in ("", "closed"):
            raise WavecoreError(f"session: {self._ended}")
        raise StopIteration

    def close(self) -> None:
        """End the stream and give up its memory; what was not taken yet is lost.

        A call that is under way is waited for, `job_timeout` seconds at most. A session that nobody closes
        ends when it is garbage-collected.
        """
        with nullcontext() if self._real else self._arrived:  # no thread that iterates takes a step any more
            self._belongings.close()
        self._over = True
        self._ready.clear()

    def __enter__(self) -> SpeculativeSession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- for the runner ------------------------------------------------------------------

    def _stop(self, error: BaseException | None) -> None:
        """Take note that the runner has stopped; the thread that iterates raises an error."""
        with self._arrived:
            self._error, self._over = error, True
            self._arrived.notify_all()

    def _observe(self, event: Event) -> None:
        event_log.record_event(self.trace, event)

    def _hurry(self, time: int) -> Event:
        """While positions are to be skipped, move the clock on to the next tick; taken like an event."""
        tick = self._runner.controller.next_tick
        if self._skips and tick is not None and tick > time and self._wall is not None:
            self._wall.advance(tick - time)
        return Wake(time)

    def _note(self, stopped: Stopped) -> None:
        self.trace.record("stop", track="worker", **stopped._asdict())

    def _perform(self, output: Output) -> None:
        more: dict[str, Any] = {}
        if isinstance(output, Commit):
            more["hash"] = self._delivery.commit(output)
            self._worker.branches.committed = output.position + 1
        elif isinstance(output, Display):
            group, more["hash"] = self._delivery.display(output)
            with self._arrived:
                self._ready.append(group)
                self._skips = max(self._skips - 1, 0)
                self._arrived.notify_all()
            if self._skips:
                self._runner.clock.post(self._hurry)
            if self._delivery.left == 0:
                self._runner.clock.post(Close)
        elif isinstance(output, Ended):
            self._ended = output.reason
            more["totals"] = self.totals.as_dict()
        else:
            self._worker.perform(output)
        event_log.record(self.trace, output, **more)


def _run(runner: Runner, stop: Callable[[BaseException | None], None]) -> None:
    """Run to the end, in a thread that does not keep the session alive."""
    try:
        runner.run()
    except BaseException as error:
        stop(error)
    else:
        stop(None)


def _close_worker(worker: Worker, trace: Trace) -> None:
    if not worker.close():
        trace.record("ignore", track="worker", event="close", reason="a call does not end")


def start_session(
    model: StreamModel,
    prompt: str,
    speculation: Speculation,
    rules: Rules,
    levels: Sequence[NoiseLevel],
    seed: int,
    size: tuple[int, int],
    fps: float,
    num_frames: int | None = None,
    trace: Trace | None = None,
    place: CallPlace | None = None,
) -> SpeculativeSession:
    """Start a stream; parameters as for `Pipeline.session`, `place` as for `make_parts`."""
    parts = make_parts(model, speculation, rules, levels, seed, size, fps, place)
    place_name = "local" if place is None else place.name
    description = describe(model, rules, seed, size, fps, num_frames, place_name)
    description["speculation"] = asdict(speculation)
    stride = model.vae.temporal_factor
    return SpeculativeSession(parts, prompt, fps, stride, num_frames, speculation, description, trace)
