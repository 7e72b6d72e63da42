"""Runs the server until it is told to stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import secrets
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn

from wavecore.errors import UsageError
from wavecore.serve.guard import Guard
from wavecore.serve.limits import Gate, is_loopback
from wavecore.serve.settings import ServeSettings

if TYPE_CHECKING:
    from starlette.types import ASGIApp

    from wavecore.serve.app import Server

Announce = Callable[[str], None]

_MESSAGE_BYTES = 4 * 1024 * 1024  # beyond this a connection is closed (1009); below, an error is sent
_STOP_SECONDS = 3
_BACKLOG = 128


class _Uvicorn(uvicorn.Server):
    """Listens at once, builds the application meanwhile, and ends sessions before their connections.

    Parameters
    ----------
    settings : ServeSettings
    build : callable
        Makes the application, in a thread: what it imports takes longer than a probe is willing to wait.
    options
        For `uvicorn.Config`.
    """

    def __init__(self, settings: ServeSettings, build: Callable[[], Server], **options: Any) -> None:
        gate = Gate(settings.host, settings.token, settings.origin)
        super().__init__(uvicorn.Config(Guard(self._application, gate), lifespan="off", **options))
        self._build = build
        self._server: asyncio.Future[Server] | None = None
        self._stack = AsyncExitStack()
        self.failure: BaseException | None = None

    async def _application(self) -> ASGIApp:
        assert self._server is not None
        return await (await asyncio.shield(self._server)).application()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._server = asyncio.ensure_future(self._begin())

    async def _begin(self) -> Server:
        try:
            server = await asyncio.to_thread(self._build)
        except Exception as error:
            self._fail(error)
            raise
        await self._stack.enter_async_context(server.running(self._fail))
        return server

    def _fail(self, error: BaseException) -> None:
        """Stop, and have `serve` raise the error: without a model there is nothing to serve."""
        self.failure, self.should_exit = error, True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        assert self._server is not None
        (built,) = await asyncio.gather(self._server, return_exceptions=True)
        if not isinstance(built, BaseException):
            await built.shut_down()
            await asyncio.sleep(0.05)  # the last messages go out, so that viewers learn why
        await super().shutdown(sockets)
        await self._stack.aclose()


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


def serve(settings: ServeSettings, build: Callable[[ServeSettings], Server], announce: Announce) -> None:
    """Serve until SIGINT or SIGTERM.

    Parameters
    ----------
    settings : ServeSettings
    build : callable
        Makes the application of the settings.
    announce : callable
        Told the address of the page, with the token, once the port is bound.

    Raises
    ------
    WavecoreError
        The port cannot be bound, or the model cannot be loaded.
    """
    settings = secured(settings)
    listener = bind(settings)
    announce(address(settings, listener.getsockname()[1]))
    server = _Uvicorn(
        settings,
        partial(build, settings),
        log_level="warning",
        access_log=False,
        ws="websockets-sansio",
        ws_max_size=_MESSAGE_BYTES,
        ws_per_message_deflate=False,
        server_header=False,
        timeout_graceful_shutdown=_STOP_SECONDS,
    )
    try:
        server.run(sockets=[listener])
    except KeyboardInterrupt:  # uvicorn raises the signal again once it has stopped
        logging.getLogger("wavecore.serve").info("stopped")
    finally:
        # At its end the interpreter looks through all objects several times; those of PyTorch are many.
        gc.freeze()
    if server.failure is not None:
        raise server.failure


def address(settings: ServeSettings, port: int) -> str:
    """Address of the page, with the token as a fragment, which is never sent."""
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    token = "" if settings.token is None else f"#token={settings.token}"
    return f"http://{host}:{port}/{token}"
