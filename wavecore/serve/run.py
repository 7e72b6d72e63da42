"""Runs the server until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
from collections.abc import Callable

import uvicorn

from wavecore.errors import UsageError
from wavecore.serve.app import Server
from wavecore.serve.engine import Engine
from wavecore.serve.limits import is_loopback
from wavecore.serve.settings import ServeSettings

_MESSAGE_BYTES = 4 * 1024 * 1024  # beyond this a connection is closed (1009); below, an error is sent
_STOP_SECONDS = 3
_BACKLOG = 128


class _Uvicorn(uvicorn.Server):
    """Ends the sessions before the connections, so that viewers learn why."""

    def __init__(self, config: uvicorn.Config, server: Server) -> None:
        super().__init__(config)
        self._server = server

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._server.shut_down()
        await asyncio.sleep(0.05)  # the last messages go out
        await super().shutdown(sockets)


def secured(settings: ServeSettings) -> ServeSettings:
    """Make up a token where others can reach the server and none was given."""
    if is_loopback(settings.host) or settings.token is not None:
        return settings
    return settings.model_copy(update={"token": secrets.token_urlsafe(24)})


def bind(settings: ServeSettings) -> socket.socket:
    """Bind the port.

    Raises
    ------
    UsageError
        It is taken, or the address is not one of this machine.
    """
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        listener.listen(_BACKLOG)  # who comes before the loop runs waits; and a second server is refused
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(
            f"--host, --port: cannot listen on {settings.host}:{settings.port}: {reason}"
        ) from None
    return listener


def serve(settings: ServeSettings, engine: Engine, announce: Callable[[str], None]) -> None:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    settings : ServeSettings
    engine : Engine
    announce : callable
        Told the address of the page, with the token, once the port is bound.
    """
    settings = secured(settings)
    listener = bind(settings)
    server = Server(settings, engine)
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    port = listener.getsockname()[1]
    token = "" if settings.token is None else f"#token={settings.token}"  # a fragment is never sent
    announce(f"http://{host}:{port}/{token}")
    config = uvicorn.Config(
        server.app,
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    try:
        _Uvicorn(config, server).run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        logging.getLogger("wavecore.serve").info("stopped")
