"""The outermost layer: who may ask, what every answer says besides, and an answer while the rest is imported.

It imports nothing that takes time, so that a server answers `/healthz` while FastAPI and the model are read.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from wavecore import __version__
from wavecore.serve.limits import Gate

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

POLICY = 1008  # close code of WebSocket
_HEADERS = {
    "content-security-policy": "default-src 'self'; img-src 'self' blob:; media-src 'self' blob:; "
    "style-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}
_OWN = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


class Guard:
    """Lets a request in if its host, origin and token are right, and adds headers to every answer.

    Parameters
    ----------
    app : callable
        Waits for the application that answers; `/healthz` does not need it.
    gate : Gate
    """

    def __init__(self, app: Callable[[], Awaitable[ASGIApp]], gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request (ASGI)."""
        if scope["type"] not in ("http", "websocket"):
            await (await self._app())(scope, receive, send)
            return
        problem = self._problem(scope)
        if scope["type"] == "websocket":
            if problem is None:
                await (await self._app())(scope, receive, send)
            else:
                await send({"type": "websocket.close", "code": POLICY, "reason": problem[1]})
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message["headers"], *_OWN]}
            await send(message)

        if problem is not None:
            error = {"code": "unauthorized", "message": problem[1]}
            await _respond(send_with_headers, problem[0], {"error": error})
        elif scope["path"] == "/healthz" and scope["method"] in ("GET", "HEAD"):
            await _respond(send_with_headers, 200, {"status": "ok", "wavecore": __version__})
        else:
            await (await self._app())(scope, receive, send_with_headers)

    def _problem(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal."""
        headers = {name: value.decode("latin-1") for name, value in reversed(scope["headers"])}
        host = headers.get(b"host")
        if not self._gate.knows_host(host):
            return 421, "host: expected this machine's own name"
        if not self._gate.knows_origin(headers.get(b"origin"), host):
            return 403, "origin: expected the server's own page"
        if scope["type"] == "http" and _needs_token(scope["path"]):
            scheme, _, token = headers.get(b"authorization", "").partition(" ")
            if not self._gate.knows_token(token if scheme.lower() == "bearer" else None):
                return 401, "authorization: expected Bearer and the server's token"
        return None


def _needs_token(path: str) -> bool:
    return path.startswith("/v1/") or path == "/metrics"


async def _respond(send: Send, status: int, content: Any) -> None:
    body = json.dumps(content).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
