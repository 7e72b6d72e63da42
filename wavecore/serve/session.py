"""One viewer's session: a stream played by a thread of its own, and what the viewer has seen of it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path

from wavecore.control.speculative.accounting import UpdateRecord
from wavecore.errors import InputError, UsageError
from wavecore.prompt import check_prompt
from wavecore.serve import protocol
from wavecore.serve.encode import EncodedGroup, H264Encoder, make_encoder
from wavecore.serve.feed import ImageFeed
from wavecore.serve.metrics import Metrics
from wavecore.serve.outbox import Outbox
from wavecore.serve.recording import Recorder
from wavecore.serve.stream import Stream
from wavecore.serve.timeline import Timeline
from wavecore.serve.viewer import Viewer
from wavecore.serve.workers import new_key
from wavecore.trace import Event

_log = logging.getLogger("wavecore.serve")

_RETAINED_SECONDS = 60
_RETAINED_BYTES = 8 * 1024 * 1024
_MOST = 1e6  # in place of an infinite amplification, before anything was played


class LiveSession:
    """A stream with its viewer. Methods belong to the event loop's thread unless said otherwise.

    Parameters
    ----------
    start : Start
        What was asked for.
    recording : Path
        Where to write what is displayed.
    metrics : Metrics
    loop : AbstractEventLoop
    ended : callable
        Told the reason, in the loop's thread, when the stream ends by itself.
    worker : str
        Name of the server, for those who share an address with others.

    Attributes
    ----------
    token, recording_key : str
        With which the viewer comes back, and gets the recording.
    asked : float
        Time of the latest request.
    detached : float or None
        When the connection was lost.
    viewer : Viewer
        What was sent to it, and came of that.
    """

    def __init__(
        self,
        start: protocol.Start,
        recording: Path,
        feed: ImageFeed | None,
        metrics: Metrics,
        loop: asyncio.AbstractEventLoop,
        ended: Callable[[LiveSession, str], None],
        worker: str,
    ) -> None:
        self.token, self.recording_key = new_key(worker), new_key(worker)
        self.recording = recording
        self.asked = self.created = time.monotonic()
        self.detached: float | None = None
        self.codec = start.codec
        self.feed = feed
        self._metrics, self._loop, self._ended = metrics, loop, ended
        self._timeline = Timeline()
        self.viewer = Viewer(metrics)
        self._ready: dict[int, float] = {}  # by position, until it is sent
        self._retained: deque[EncodedGroup] = deque()
        self._retained_bytes = 0
        self._paused = self._closed = False
        self._skip_to = 0
        self._replay: asyncio.Task[None] | None = None
        self._go = asyncio.Event()
        self._go.set()
        self._thread: threading.Thread | None = None

    def prepare(self, stream: Stream) -> None:
        """Take the stream; called once, from any thread, before the first viewer is attached."""
        self.stream = stream
        self._encoder = make_encoder(self.codec, stream.size, stream.fps)
        track = self._encoder if isinstance(self._encoder, H264Encoder) else None
        self._recorder = Recorder(
            self.recording,
            track or H264Encoder(stream.size, stream.fps),
            stream.fps,
            jpeg=track is None,
        )

    # -- for the stream's threads --------------------------------------------------------

    def follow(self, event: Event) -> None:
        """Take note of an event of the stream."""
        self._metrics.follow(event)
        if event.kind == "ready":
            self._ready[event.data["group"]] = event.time + event.duration
        if self._timeline.follow(event):
            self._call(self.viewer.changed)

    def _play(self) -> None:
        reason = "finished"
        stream, encoder = self.stream, self._encoder
        try:
            while True:
                group = next(stream)
                due = time.monotonic()
                units = encoder.encode(group.frames)
                ready = self._ready.pop(group.index, due - stream.behind) + stream.behind
                self._call(
                    self._deliver,
                    EncodedGroup(group.index, group.version, group.pts, ready, due, 1 / stream.fps, units),
                )
        except StopIteration:
            pass
        except Exception:
            reason = "failed"
            _log.exception("session %s failed", self.recording.stem)
        self._call(self._ended, self, reason)

    def _call(self, function: Callable[..., object], *arguments: object) -> None:
        """Call in the loop's thread, unless the loop is gone."""
        try:
            self._loop.call_soon_threadsafe(function, *arguments)
        except RuntimeError:
            _log.debug("loop closed before the session")

    # -- frames --------------------------------------------------------------------------

    def _deliver(self, group: EncodedGroup) -> None:
        self._retained.append(group)
        self._retained_bytes += group.size
        limit = max(1, round(_RETAINED_SECONDS * self.stream.fps / self.stream.group))
        while len(self._retained) > limit or self._retained_bytes > _RETAINED_BYTES:
            self._retained_bytes -= self._retained.popleft().size
        for position in [p for p in self._ready if p < group.position]:
            self._ready.pop(position, None)
        if self._replay is None and group.position >= self._skip_to:
            self.viewer.offer(group, self.commit, replay=False)

    def acknowledge(self, ack: protocol.Ack) -> None:
        """Take note of what the viewer has got and seen."""
        for group in self.viewer.acknowledge(ack):
            self._recorder.add(group.units)
        self.viewer.changed()

    def _settled(self, update: int, future: Future[UpdateRecord]) -> None:
        values = future.result().as_dict()
        fields = {name: values[name] for name in protocol.Record.__struct_fields__ if name in values}
        record = protocol.Record(update=update, **fields)
        for name in ("arrival", "start", "ready", "display"):
            value = getattr(record, name)
            if value is not None:
                setattr(record, name, value + self.stream.behind)
        self.viewer.settled(record)

    # -- verbs ---------------------------------------------------------------------------

    def update(self, request: protocol.Update) -> None:
        """Ask for another prompt; a record follows."""
        prompt = check_prompt(request.prompt)
        future = self.stream.update(prompt, request.transition)
        future.add_done_callback(partial(self._call, self._settled, request.id))

    def pause(self) -> None:
        """Stop the stream's clock."""
        self._paused = True
        self._go.clear()
        self.stream.pause()
        self.viewer.changed()

    def resume(self) -> None:
        """Let the stream's clock go on, behind a replay."""
        self._paused = False
        self._go.set()
        if self._replay is None:
            self.stream.resume()
        self.viewer.changed()

    def seek(self, position: int) -> None:
        """Play from a position: again from the retained past, or at once from the predicted future.

        Raises
        ------
        ProtocolError
            range: there is no such position.
        """
        cursor, end = self._timeline.cursor, max(self.stream.horizon.replaceable, self._timeline.cursor)
        oldest = self._retained[0].position if self._retained else cursor
        if not oldest <= position <= end:
            raise protocol.ProtocolError("range", f"position: expected {oldest} to {end}, got {position}")
        if self._replay is not None:
            self._replay.cancel()
            self._replay = None
        if position < cursor:
            self.stream.pause()
            self._replay = self._loop.create_task(self._play_again(position))
            return
        if not self._paused:
            self.stream.resume()
        self._skip_to = position
        for _ in range(position - cursor):
            self.stream.skip()

    async def _play_again(self, position: int) -> None:
        """Offer retained groups at their pace, then let the stream go on."""
        due = time.monotonic()
        while True:
            await self._go.wait()
            group = next((g for g in self._retained if g.position >= position), None)
            if group is None:
                break
            due = max(due, time.monotonic())
            again = EncodedGroup(
                group.position, group.version, group.pts, group.ready, due, group.spacing, group.units
            )
            self.viewer.offer(again, self.commit, replay=True)
            position = group.position + 1
            due += len(group.units) * group.spacing
            await asyncio.sleep(due - time.monotonic())
        self._replay = None
        if not self._paused and self.viewer.outbox is not None:
            self.stream.resume()

    def image(self, data: bytes) -> None:
        """Take a frame to restyle.

        Raises
        ------
        UsageError, InputError
            The stream takes none, or it is not an image.
        """
        if self.feed is None:
            raise UsageError("image: expected a session with source images, got one with source prompt")
        dropped = self.feed.put(data)
        if dropped:
            self._metrics.images_dropped.inc(dropped)

    # -- connection ----------------------------------------------------------------------

    def attach(self, outbox: Outbox) -> None:
        """Connect a viewer: the stream begins, or goes on."""
        self.detached = None
        self.viewer.attach(outbox)
        if self._thread is None:
            self._thread = threading.Thread(target=self._play, name="wavecore-play", daemon=True)
            self._thread.start()
        if not self._paused:
            self._go.set()
            self.stream.resume()
        self.viewer.changed()

    def detach(self) -> None:
        """The viewer is gone: the stream stands still; nothing is made beyond the call under way."""
        if self._closed:
            return
        self.viewer.outbox, self.detached = None, time.monotonic()
        if self._replay is not None:
            self._replay.cancel()
            self._replay = None
        self.stream.pause()

    async def close(self) -> None:
        """End the stream, finish the recording and give up memory."""
        if self._closed:
            return
        self._closed = True
        if self._replay is not None:
            self._replay.cancel()
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        if self.feed is not None:
            self.feed.close()
        self.stream.close()
        if self._thread is not None:
            self._thread.join()
        self._recorder.close()

    # -- state ---------------------------------------------------------------------------

    @property
    def commit(self) -> tuple[int, int, int]:
        """Ends of the irrevocable, the locked and the replaceable positions."""
        horizon = self.stream.horizon
        return horizon.irrevocable, horizon.locked, horizon.replaceable

    @property
    def decoder(self) -> str:
        """What a viewer needs to decode frames: a codec string or a media type."""
        return self._encoder.decoder

    @property
    def position(self) -> int:
        """The next position to be played."""
        return self._timeline.cursor

    @property
    def version(self) -> int:
        """Latest version asked for."""
        return self._timeline.version

    def state(self) -> protocol.State:
        """The stream as it stands."""
        totals = self.stream.totals
        summary = totals.as_dict()
        return protocol.State(
            cursor=self._timeline.cursor,
            commit=self.commit,
            retained=self._retained[0].position if self._retained else self._timeline.cursor,
            version=self._timeline.version,
            paused=self._paused,
            versions=self._timeline.runs(),
            invalidated=self._timeline.take_invalidated(),
            counters={
                "displayed": self.viewer.displayed,
                "skipped": self.viewer.skipped,
                "dropped": self.viewer.dropped,
                "underruns": totals.underruns,
                "superseded": totals.superseded,
                "updates": self._timeline.version,
                "discarded": sum(summary["discarded"].values()),
                "calls": totals.calls + totals.bootstrap_calls,
            },
            amplification=min(totals.amplification, _MOST),
            waste=summary["waste"],
            load=summary["utilisation"],
        )


def input_error_code(error: Exception) -> protocol.Code:
    """Code of an error that a request ran into."""
    if isinstance(error, UsageError):
        return "unsupported" if str(error).startswith(("transition", "control", "image")) else "invalid"
    return "invalid" if isinstance(error, InputError) else "failed"
