"""All sessions of a server: who is admitted, who waits for a lost viewer, who has been here long enough."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from wavecore.control.speculative.accounting import Totals
from wavecore.errors import WavecoreError
from wavecore.prompt import check_prompt
from wavecore.serve.admission import Admission, Cost
from wavecore.serve.engine import Engine
from wavecore.serve.feed import ImageFeed
from wavecore.serve.metrics import Metrics
from wavecore.serve.protocol import ProtocolError, Start
from wavecore.serve.session import LiveSession, input_error_code
from wavecore.serve.settings import ServeSettings

_log = logging.getLogger("wavecore.serve")

_RETRY_SECONDS = 5.0
_FAILED_SECONDS = 60.0  # until loading is tried again
_LOOK_SECONDS = 0.25
_RECORDINGS = 64  # finished ones that can be fetched, when they are not kept


class Sessions:
    """Registry of sessions. Belongs to the event loop's thread.

    Parameters
    ----------
    engine : Engine
    settings : ServeSettings
    metrics : Metrics

    Attributes
    ----------
    admission : Admission or None
        None until the model is warm.
    failure : str or None
        Why it never will be.
    worker : str
        Name that the keys of what lives here begin with.
    """

    def __init__(self, engine: Engine, settings: ServeSettings, metrics: Metrics) -> None:
        self.engine = engine
        self.worker = settings.worker or secrets.token_hex(4)
        self.admission: Admission | None = None
        self.failure: str | None = None
        self._settings, self._metrics = settings, metrics
        self._sessions: dict[str, LiveSession] = {}
        self._ended: dict[str, Callable[[str], None]] = {}  # connections to tell, by session
        self._recordings: dict[str, Path] = {}
        self._opening = self._others = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        if settings.recordings is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="wavecore-")
            self.folder = Path(self._temporary.name)
        else:
            self.folder = settings.recordings
            self.folder.mkdir(parents=True, exist_ok=True)

    # -- model ---------------------------------------------------------------------------

    async def load(self) -> None:
        """Load and warm up the model.

        Raises
        ------
        Exception
            Why that cannot be, once it is noted in `failure`.
        """
        settings = self._settings
        try:
            cost = await asyncio.to_thread(self._load)
        except Exception as error:
            known = f": {error}" if isinstance(error, WavecoreError) else ""
            self.failure = f"the model cannot be loaded{known}"
            raise
        self.admission = Admission(cost, settings.latency_objective, settings.slots)
        _log.info(
            "ready: a response takes %.0f ms, a session %.0f %% of the worker",
            1e3 * cost.response,
            100 * cost.load,
        )

    def _load(self) -> Cost:
        cost = self.engine.load()
        gc.collect()
        gc.freeze()  # what the model is made of stays: collections that go through it hold streams up
        return cost

    # -- sessions ------------------------------------------------------------------------

    @property
    def active(self) -> int:
        """Sessions that have a slot, those that are being opened and other work included."""
        connected = sum(1 for s in self._sessions.values() if s.detached is None)
        return connected + self._opening + self._others

    def counts(self) -> tuple[int, int]:
        """Sessions connected, and sessions that wait for their viewer."""
        waiting = sum(1 for s in self._sessions.values() if s.detached is not None)
        return len(self._sessions) - waiting, waiting

    def totals(self) -> list[Totals]:
        """Counts of every session."""
        return [session.stream.totals for session in self._sessions.values()]

    def image_age(self) -> float:
        """Seconds that the oldest image has waited."""
        feeds = [s.feed.oldest for s in self._sessions.values() if s.feed is not None]
        return max((time.monotonic() - oldest for oldest in feeds if oldest is not None), default=0.0)

    def admit(self) -> None:
        """Refuse when one more session would break the objective.

        Raises
        ------
        ProtocolError
            busy or not_ready, with a time to retry after.
        """
        if self.failure is not None:
            raise ProtocolError("failed", self.failure, retry_after=_FAILED_SECONDS)
        if self.admission is None:
            raise ProtocolError("not_ready", "model: being loaded", retry_after=1.0)
        refusal = self.admission.refusal(self.active)
        if refusal is not None:
            self._metrics.refused.inc()
            raise ProtocolError("busy", refusal, retry_after=_RETRY_SECONDS)

    async def open(self, start: Start, ended: Callable[[str], None]) -> LiveSession:
        """Open a session; `ended` is told if it ends by itself.

        Raises
        ------
        ProtocolError
        """
        self.admit()
        self._opening += 1
        try:
            check_prompt(start.prompt)
            feed = ImageFeed(self.engine.size(start)) if start.source == "images" else None
            recording = self.folder / f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(4)}.mp4"
            loop = asyncio.get_running_loop()
            session = LiveSession(start, recording, feed, self._metrics, loop, self._over, self.worker)

            def open_stream() -> None:
                session.prepare(self.engine.open(start, session.follow, feed))

            opening = asyncio.ensure_future(asyncio.to_thread(open_stream))
            try:
                await asyncio.shield(opening)
            except asyncio.CancelledError:  # the viewer left; a thread cannot be stopped, its stream can
                self.spawn(_abandon(opening, session))
                raise
        except WavecoreError as error:
            raise ProtocolError(input_error_code(error), str(error)) from None
        finally:
            self._opening -= 1
        self._sessions[session.token] = session
        self._ended[session.token] = ended
        self._remember(session)
        return session

    def find(self, token: str, ended: Callable[[str], None]) -> LiveSession:
        """Return the session of a token to a viewer who comes back.

        Raises
        ------
        ProtocolError
            unknown_session; state where it has a viewer; busy where its slot was given away.
        """
        session = self._sessions.get(token)
        if session is None:
            raise ProtocolError("unknown_session", "session: ended, or never there")
        if session.detached is None:
            raise ProtocolError("state", "session: expected one without a viewer, got one that has one")
        self.admit()
        self._ended[token] = ended
        return session

    async def close(self, session: LiveSession, reason: str) -> None:
        """End a session and tell its viewer."""
        if self._sessions.pop(session.token, None) is None:
            return
        await session.close()
        self._ended.pop(session.token)(reason)

    def _remember(self, session: LiveSession) -> None:
        self._recordings[session.recording_key] = session.recording
        if self._temporary is not None:
            while len(self._recordings) > _RECORDINGS:
                oldest = next(iter(self._recordings))
                self._recordings.pop(oldest).unlink(missing_ok=True)

    def recording(self, key: str) -> Path | None:
        """File of a recording."""
        path = self._recordings.get(key)
        return path if path is not None and path.exists() else None

    def _over(self, session: LiveSession, reason: str) -> None:
        """A stream came to its end by itself."""
        self.spawn(self.close(session, reason))

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine that nobody waits for."""
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # -- others --------------------------------------------------------------------------

    def take_slot(self) -> bool:
        """Take a slot for work that is not a session, if one can be had."""
        try:
            self.admit()
        except ProtocolError:
            return False
        self._others += 1
        return True

    def free_slot(self) -> None:
        """Give it back."""
        self._others -= 1

    # -- time ----------------------------------------------------------------------------

    async def watch(self) -> None:
        """End sessions whose time is over, for ever."""
        settings = self._settings
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            for session in list(self._sessions.values()):
                if session.detached is not None and now - session.detached > settings.resume_seconds:
                    await self.close(session, "abandoned")
                elif now - session.asked > settings.idle_seconds:
                    await self.close(session, "idle")
                elif now - session.created > settings.lifetime_seconds:
                    await self.close(session, "lifetime")

    async def shut_down(self) -> None:
        """End all sessions; recordings are complete afterwards."""
        await asyncio.gather(*(self.close(s, "shutdown") for s in list(self._sessions.values())))
        if self._temporary is not None:
            self._temporary.cleanup()


async def _abandon(opening: asyncio.Future[None], session: LiveSession) -> None:
    """Close a session whose viewer left while it was opened."""
    try:
        await opening
    except WavecoreError:
        return
    await session.close()
