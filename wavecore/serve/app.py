"""The server's routes: Starlette, whose bodies are msgspec structs, so that it starts within a second."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator
from importlib import resources
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from wavecore import __version__
from wavecore.serve.connection import POLICY, Connection
from wavecore.serve.engine import Engine
from wavecore.serve.limits import Gate
from wavecore.serve.metrics import Metrics
from wavecore.serve.protocol import PROTOCOL, ProtocolError
from wavecore.serve.sessions import Sessions
from wavecore.serve.settings import ServeSettings
from wavecore.serve.videos import Videos

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
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


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
        routes = [
            WebSocketRoute("/v1/stream", self._stream),
            Route("/healthz", self._healthz),
            Route("/readyz", self._readyz),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
            Route("/v1/videos", self._create_video, methods=["POST"]),
            Route("/v1/videos", self._list_videos),
            Route("/v1/videos/{key}", self._video),
            Route("/v1/videos/{key}", self._delete_video, methods=["DELETE"]),
            Route("/v1/videos/{key}/content", self._content),
            Route("/v1/recordings/{key}", self._recording),
            Route("/", self._asset),
            Route("/{name}", self._asset),
        ]
        starlette = Starlette(
            routes=routes, lifespan=self._life, exception_handlers={ProtocolError: _protocol_error}
        )
        self.app: ASGIApp = _Guard(starlette, self.gate)

    @contextlib.asynccontextmanager
    async def _life(self, _: Starlette) -> AsyncIterator[None]:
        tasks = [
            asyncio.ensure_future(work)
            for work in (self.sessions.load(), self.sessions.watch(), self.videos.work())
        ]
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

    async def _healthz(self, _: Request) -> Response:
        return _json({"status": "ok", "wavecore": __version__})

    async def _readyz(self, _: Request) -> Response:
        if self.sessions.admission is not None:
            return _json({"status": "ready"})
        failure = self.sessions.failure
        return _json({"status": "loading" if failure is None else "failed", "error": failure}, 503)

    async def _metrics(self, _: Request) -> Response:
        return Response(self.metrics.text(), media_type="text/plain; version=0.0.4")

    async def _models(self, _: Request) -> Response:
        model = {"id": self._model, "object": "model", "owned_by": "wavecore", "protocol": PROTOCOL}
        return _json({"object": "list", "data": [model]})

    async def _create_video(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _BODY_BYTES:
                raise ProtocolError("too_large", f"body: expected at most {_BODY_BYTES} bytes")
        return _json(self.videos.create(body).as_dict())

    async def _list_videos(self, _: Request) -> Response:
        return _json({"object": "list", "data": [job.as_dict() for job in self.videos.all()]})

    async def _video(self, request: Request) -> Response:
        job = self.videos.get(request.path_params["key"])
        return _missing("clip") if job is None else _json(job.as_dict())

    async def _delete_video(self, request: Request) -> Response:
        job = self.videos.delete(request.path_params["key"])
        if job is None:
            return _missing("clip")
        return _json({"id": job.key, "object": "video.deleted", "deleted": True})

    async def _content(self, request: Request) -> Response:
        job = self.videos.get(request.path_params["key"])
        if job is None:
            return _missing("clip")
        if job.status != "completed":
            return _error(409, "state", f"clip: expected a completed one, got {job.status}")
        return FileResponse(job.path, media_type="video/mp4", filename=f"{job.key}.mp4")

    async def _recording(self, request: Request) -> Response:
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


class _Guard:
    """Lets a request in if its host, origin and token are right, and adds headers to every answer."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        host = headers.get("host")
        problem = None
        if not self._gate.knows_host(host):
            problem = 421, "host: expected this machine's own name"
        elif not self._gate.knows_origin(headers.get("origin"), host):
            problem = 403, "origin: expected the server's own page"
        elif scope["type"] == "http" and _needs_token(scope["path"]):
            scheme, _, token = headers.get("authorization", "").partition(" ")
            if not self._gate.knows_token(token if scheme.lower() == "bearer" else None):
                problem = 401, "authorization: expected Bearer and the server's token"
        if scope["type"] == "websocket":
            if problem is None:
                await self._app(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": POLICY, "reason": problem[1]})
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message["headers"], *own]}
            await send(message)

        if problem is None:
            await self._app(scope, receive, send_with_headers)
        else:
            await _error(problem[0], "unauthorized", problem[1])(scope, receive, send_with_headers)


def _needs_token(path: str) -> bool:
    return path.startswith("/v1/") or path == "/metrics"


def _read_page() -> dict[str, tuple[bytes, str, str]]:
    """Content, media type and entity tag of every file of the page, by name."""
    page = {}
    for file in resources.files("wavecore.serve").joinpath("page").iterdir():
        kind = _TYPES.get("." + file.name.rpartition(".")[2])
        if kind is not None:
            content = file.read_bytes()
            page[file.name] = content, kind, f'"{hashlib.sha256(content).hexdigest()[:16]}"'
    return page


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
