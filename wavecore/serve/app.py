"""The server's routes: FastAPI, with bodies that are msgspec structs, as the messages of a stream are."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any

import msgspec
from fastapi import FastAPI, Request, WebSocket
from fastapi.responses import FileResponse, Response
from starlette.types import ASGIApp

from wavecore import __version__
from wavecore.errors import WavecoreError
from wavecore.serve.connection import Connection
from wavecore.serve.engine import Engine
from wavecore.serve.guard import Guard
from wavecore.serve.limits import Gate
from wavecore.serve.metrics import Metrics
from wavecore.serve.protocol import PROTOCOL, ProtocolError
from wavecore.serve.sessions import Sessions
from wavecore.serve.settings import ServeSettings
from wavecore.serve.videos import VideoRequest, Videos

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_STATUS = {
    "busy": 503,
    "not_ready": 503,
    "unauthorized": 401,
    "invalid": 400,
    "malformed": 400,
    "too_large": 413,
    "failed": 500,
}
_BODY_BYTES = 64 * 1024
_log = logging.getLogger("wavecore.serve")


class Server:
    """The application and what it is made of.

    Parameters
    ----------
    settings : ServeSettings
    engine : Engine

    Attributes
    ----------
    app : ASGI application
    """

    def __init__(self, settings: ServeSettings, engine: Engine) -> None:
        self.metrics = Metrics()
        self.sessions = Sessions(engine, settings, self.metrics)
        self.videos = Videos(self.sessions)
        self.gate = Gate(settings.host, settings.token, settings.origin)
        self.metrics.watch(
            self.sessions.totals,
            self.sessions.counts,
            {"images": self.sessions.image_age, "videos": self.videos.age},
        )
        self._model = engine.model
        self._page = _read_page()
        self._app = self._routes()
        self.app: ASGIApp = Guard(self.application, self.gate)

    async def application(self) -> ASGIApp:
        """Return the application without its guard."""
        return self._app

    def _routes(self) -> FastAPI:
        """Make the application, without FastAPI's own pages, whose scripts come from another host."""
        app = FastAPI(
            title="wavecore",
            version=__version__,
            docs_url=None,
            redoc_url=None,
            lifespan=self._life,
        )
        app.add_exception_handler(ProtocolError, _protocol_error)
        app.add_api_websocket_route("/v1/stream", self._stream)
        _, kinds = msgspec.json.schema_components((VideoRequest,))
        body = {"required": True, "content": {"application/json": {"schema": kinds["VideoRequest"]}}}
        for path, answer, method in (
            ("/readyz", self._readyz, "GET"),
            ("/metrics", self._metrics, "GET"),
            ("/v1/models", self._models, "GET"),
            ("/v1/videos", self._create_video, "POST"),
            ("/v1/videos", self._list_videos, "GET"),
            ("/v1/videos/{key}", self._video, "GET"),
            ("/v1/videos/{key}", self._delete_video, "DELETE"),
            ("/v1/videos/{key}/content", self._content, "GET"),
            ("/v1/recordings/{key}", self._recording, "GET"),
        ):
            more = {"requestBody": body} if method == "POST" else None
            app.add_api_route(path, answer, methods=[method], openapi_extra=more)
        app.add_api_route("/", self._asset, include_in_schema=False)
        app.add_api_route("/{name}", self._asset, include_in_schema=False)
        return app

    @contextlib.asynccontextmanager
    async def _life(self, _: FastAPI) -> AsyncIterator[None]:
        async with self.running(self._log_failure):
            yield

    def _log_failure(self, error: BaseException) -> None:
        """Where something else runs the application, which may go on without a model, `/readyz` says why."""
        unknown = None if isinstance(error, WavecoreError) else error
        _log.error("%s", self.sessions.failure, exc_info=unknown)

    @contextlib.asynccontextmanager
    async def running(self, failed: Callable[[BaseException], None]) -> AsyncIterator[None]:
        """Load the model and work, until the block ends.

        Parameters
        ----------
        failed : callable
            Told why the model cannot be loaded, where it cannot.
        """
        loading = asyncio.ensure_future(self.sessions.load())
        loading.add_done_callback(lambda task: _tell(task, failed))
        others = [asyncio.ensure_future(work) for work in (self.sessions.watch(), self.videos.work())]
        tasks = [loading, *others]
        try:
            yield
        finally:
            await self.shut_down()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def shut_down(self) -> None:
        """End all work; recordings are complete afterwards."""
        self.videos.stop()
        await self.sessions.shut_down()

    # -- streams -------------------------------------------------------------------------

    async def _stream(self, socket: WebSocket) -> None:
        await socket.accept()
        await Connection(socket, self.sessions, self.gate, self.metrics).run()

    # -- for machines --------------------------------------------------------------------

    async def _readyz(self, _: Request) -> Response:
        """Whether the model is warm."""
        if self.sessions.admission is not None:
            return _json({"status": "ready"})
        failure = self.sessions.failure
        return _json({"status": "loading" if failure is None else "failed", "error": failure}, 503)

    async def _metrics(self, _: Request) -> Response:
        """Metrics in the Prometheus text format."""
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _models(self, _: Request) -> Response:
        """The model that is served."""
        model = {"id": self._model, "object": "model", "owned_by": "wavecore", "protocol": PROTOCOL}
        return _json({"object": "list", "data": [model]})

    async def _create_video(self, request: Request) -> Response:
        """Ask for a clip."""
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _BODY_BYTES:
                raise ProtocolError("too_large", f"body: expected at most {_BODY_BYTES} bytes")
        return _json(self.videos.create(body).as_dict())

    async def _list_videos(self, _: Request) -> Response:
        """Every clip, the latest first."""
        return _json({"object": "list", "data": [job.as_dict() for job in self.videos.all()]})

    async def _video(self, request: Request) -> Response:
        """Status of a clip."""
        job = self.videos.get(request.path_params["key"])
        return _missing("clip") if job is None else _json(job.as_dict())

    async def _delete_video(self, request: Request) -> Response:
        """Forget a clip."""
        job = self.videos.delete(request.path_params["key"])
        if job is None:
            return _missing("clip")
        return _json({"id": job.key, "object": "video.deleted", "deleted": True})

    async def _content(self, request: Request) -> Response:
        """The mp4 of a clip."""
        job = self.videos.get(request.path_params["key"])
        if job is None:
            return _missing("clip")
        if job.status != "completed":
            return _error(409, "state", f"clip: expected a completed one, got {job.status}")
        return FileResponse(job.path, media_type="video/mp4", filename=f"{job.key}.mp4")

    async def _recording(self, request: Request) -> Response:
        """The mp4 of what a session displayed."""
        path = self.sessions.recording(request.path_params["key"])
        if path is None:
            return _missing("recording")
        # Read whole: it grows while it is sent, and is small.
        content = await asyncio.to_thread(path.read_bytes)
        disposition = {"content-disposition": 'attachment; filename="wavecore.mp4"'}
        return Response(content, media_type="video/mp4", headers=disposition)

    # -- page ----------------------------------------------------------------------------

    async def _asset(self, request: Request) -> Response:
        name = request.path_params.get("name", "index.html")
        asset = self._page.get(name)  # a name out of a fixed table: no path of a client is ever opened
        if asset is None:
            return _missing("page")
        content, kind, tag = asset
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers={"etag": tag})
        return Response(content, media_type=kind, headers={"etag": tag})


def _read_page() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and entity tag of every file of the page, by name."""
    page = {}
    for file in resources.files("wavecore.serve").joinpath("page").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            page[file.name] = content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return page


def _tell(task: asyncio.Future[None], failed: Callable[[BaseException], None]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None:
        failed(error)


def _json(content: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(msgspec.json.encode(content), status, headers, media_type="application/json")


def _error(status: int, code: str, message: str, retry_after: float | None = None) -> Response:
    headers = {} if retry_after is None else {"retry-after": f"{retry_after:.0f}"}
    return _json({"error": {"code": code, "message": message}}, status, headers)


def _missing(what: str) -> Response:
    return _error(404, "not_found", f"{what}: there is none of this name")


def _protocol_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, ProtocolError)
    return _error(_STATUS.get(error.code, 400), error.code, error.message, error.retry_after)
