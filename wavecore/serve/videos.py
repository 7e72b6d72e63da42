"""Clips by request, for users who do not watch: one after the other, behind the live sessions."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from wavecore.errors import WavecoreError
from wavecore.prompt import check_prompt
from wavecore.serve.protocol import PROTOCOL, ProtocolError, Start, Text, Whole
from wavecore.serve.sessions import Sessions
from wavecore.serve.workers import new_key

_log = logging.getLogger("wavecore.serve")

_WAITING = 32
_KEPT = 64
_SLOT_SECONDS = 0.25  # between looks for a slot


class VideoRequest(Struct, forbid_unknown_fields=True):
    """Body of a request for a clip, after OpenAI's video endpoint.

    Attributes
    ----------
    prompt : str
    model : str, optional
        The served one.
    seconds : float or str
        Length.
    size : str, optional
        WIDTHxHEIGHT.
    """

    prompt: Text
    model: str | None = None
    seconds: Annotated[float, Meta(gt=0, le=600)] = 4.0
    size: Annotated[str, Meta(pattern=r"^\d{2,4}x\d{2,4}$")] | None = None
    seed: Whole = 0
    steps: Annotated[int, Meta(ge=1, le=50)] = 4


class Job:
    """One clip.

    Attributes
    ----------
    status : str
        queued, in_progress, completed or failed.
    """

    def __init__(self, request: VideoRequest, start: Start, path: Path, model: str, worker: str) -> None:
        self.key = new_key(worker)
        self.request, self.start, self.path, self.model = request, start, path, model
        self.status: Literal["queued", "in_progress", "completed", "failed"] = "queued"
        self.progress = 0.0
        self.error: str | None = None
        self.created = time.time()
        self.deleted = False

    def as_dict(self) -> dict[str, Any]:
        """As clients see it; the prompt is not repeated."""
        return {
            "id": self.key,
            "object": "video",
            "model": self.model,
            "status": self.status,
            "progress": round(100 * self.progress),
            "created_at": int(self.created),
            "seconds": f"{self.request.seconds:g}",
            "size": self.request.size,
            "error": None if self.error is None else {"code": "failed", "message": self.error},
        }


class _Deleted(Exception):
    pass


class Videos:
    """Queue of clips, made one at a time in a slot like that of a session.

    Parameters
    ----------
    sessions : Sessions
    """

    def __init__(self, sessions: Sessions) -> None:
        self._sessions = sessions
        self._jobs: dict[str, Job] = {}
        self._queue: asyncio.Queue[Job] = asyncio.Queue()
        self._decoder = msgspec.json.Decoder(VideoRequest, strict=False)  # OpenAI's seconds are text
        self._stopping = False

    def create(self, body: bytes) -> Job:
        """Queue a clip.

        Raises
        ------
        ProtocolError
            invalid, or busy when too many wait.
        """
        try:
            request = self._decoder.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("invalid", f"body: {error}") from None
        try:
            check_prompt(request.prompt)
        except WavecoreError as error:
            raise ProtocolError("invalid", str(error)) from None
        model = self._sessions.engine.model
        if request.model not in (None, model):
            raise ProtocolError("invalid", f"model: expected {model}, got {request.model!r:.60}")
        if sum(job.status == "queued" for job in self._jobs.values()) >= _WAITING:
            raise ProtocolError("busy", f"expected at most {_WAITING} clips that wait", retry_after=10.0)
        size = None
        if request.size is not None:
            width, height = map(int, request.size.split("x"))
            size = width, height
        start = Start(
            id=0, protocol=PROTOCOL, prompt=request.prompt, seed=request.seed, steps=request.steps, size=size
        )
        path = self._sessions.folder / f"clip-{secrets.token_hex(8)}.mp4"
        job = Job(request, start, path, model, self._sessions.worker)
        self._jobs[job.key] = job
        finished = [j for j in self._jobs.values() if j.status in ("completed", "failed")]
        for old in finished[: max(0, len(finished) - _KEPT)]:
            self.delete(old.key)
        self._queue.put_nowait(job)
        return job

    def get(self, key: str) -> Job | None:
        """Find a clip."""
        return self._jobs.get(key)

    def all(self) -> list[Job]:
        """Every clip, the latest first."""
        return list(reversed(self._jobs.values()))

    def delete(self, key: str) -> Job | None:
        """Forget a clip, and stop making it."""
        job = self._jobs.pop(key, None)
        if job is not None:
            job.deleted = True
            job.path.unlink(missing_ok=True)
        return job

    def age(self) -> float:
        """Seconds that the oldest request has waited."""
        queued = [job.created for job in self._jobs.values() if job.status == "queued"]
        return time.time() - min(queued) if queued else 0.0

    async def work(self) -> None:
        """Make clips, for ever."""
        while True:
            job = await self._queue.get()
            while not job.deleted and not self._sessions.take_slot():
                await asyncio.sleep(_SLOT_SECONDS)
            if job.deleted:
                continue
            job.status = "in_progress"
            try:
                await asyncio.to_thread(self._make, job)
                job.status, job.progress = "completed", 1.0
            except _Deleted:
                job.path.unlink(missing_ok=True)
            except WavecoreError as error:
                job.status, job.error = "failed", str(error)
            except Exception:
                job.status, job.error = "failed", "the server failed"
                _log.exception("clip %s failed", job.key)
            finally:
                self._sessions.free_slot()

    def stop(self) -> None:
        """End the clip under way."""
        self._stopping = True

    def _make(self, job: Job) -> None:
        def progress(share: float) -> None:
            job.progress = share
            if job.deleted or self._stopping:
                raise _Deleted

        self._sessions.engine.make_video(job.start, job.request.seconds, job.path, progress)
