"""One WebSocket: requests in, replies and frames out."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import MutableMapping
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from wavecore.errors import WavecoreError
from wavecore.serve import protocol
from wavecore.serve.guard import POLICY
from wavecore.serve.limits import Gate, TokenBucket
from wavecore.serve.metrics import Metrics
from wavecore.serve.outbox import Outbox
from wavecore.serve.protocol import ProtocolError
from wavecore.serve.session import LiveSession, input_error_code
from wavecore.serve.sessions import Sessions

_log = logging.getLogger("wavecore.serve")

_START_SECONDS = 30.0  # for the first request
_REQUESTS = (100.0, 200.0)  # a second, and at once
_DATA = (200.0, 400.0)
NORMAL, TRY_LATER, FAILED, GOING_AWAY = 1000, 1013, 1011, 1001


class Connection:
    """Serves one WebSocket that was accepted.

    Parameters
    ----------
    socket : WebSocket
    sessions : Sessions
    gate : Gate
    metrics : Metrics
    """

    def __init__(self, socket: WebSocket, sessions: Sessions, gate: Gate, metrics: Metrics) -> None:
        self._socket, self._sessions, self._gate, self._metrics = socket, sessions, gate, metrics
        self._session: LiveSession | None = None
        self._decoder = protocol.ClientDecoder()
        self._encoder = msgspec.msgpack.Encoder()
        self._outbox = Outbox(self._state, time.monotonic)
        self._requests = TokenBucket(*_REQUESTS, time.monotonic)
        self._data = TokenBucket(*_DATA, time.monotonic)
        self._code: int | None = None  # to close with

    async def run(self) -> None:
        """Serve until either side is done; the session of a lost connection waits for its viewer."""
        writer = asyncio.ensure_future(self._write())
        reader = asyncio.ensure_future(self._read())
        try:
            await asyncio.wait((reader, writer), return_when=asyncio.FIRST_COMPLETED)
            if self._code is not None and not writer.done():
                await asyncio.wait((writer,), timeout=1.0)
        finally:
            for task in (reader, writer):
                task.cancel()
            session = self._session
            if session is not None and session.viewer.outbox is self._outbox:
                session.detach()
        for result in await asyncio.gather(reader, writer, return_exceptions=True):
            if isinstance(result, Exception) and not isinstance(result, WebSocketDisconnect | RuntimeError):
                _log.error("connection failed", exc_info=result)
                self._code = FAILED
        if self._code is not None:
            try:
                await asyncio.wait_for(self._socket.close(self._code), 1.0)
            except (RuntimeError, WebSocketDisconnect, asyncio.TimeoutError):
                _log.debug("the viewer closed first")

    # -- out -----------------------------------------------------------------------------

    async def _write(self) -> None:
        while (message := await self._outbox.next()) is not None:
            await self._socket.send_bytes(self._encoder.encode(message))

    def _state(self) -> protocol.State:
        assert self._session is not None
        return self._session.state()

    def _fail(self, error: ProtocolError) -> None:
        self._metrics.errors.labels(error.code).inc()
        self._outbox.reply(error.reply())

    def _close(self, code: int, last: protocol.Ended | None = None) -> None:
        self._code = code
        self._outbox.close(last)

    def _ended(self, reason: str) -> None:
        """The session is over, whoever ended it."""
        self._session = None
        codes = {"failed": FAILED, "shutdown": GOING_AWAY}
        self._close(codes.get(reason, NORMAL), protocol.Ended(reason))

    # -- in ------------------------------------------------------------------------------

    async def _read(self) -> None:
        first = asyncio.get_running_loop().call_later(_START_SECONDS, self._expire)
        try:
            while self._code is None:
                message = await self._socket.receive()
                if message["type"] == "websocket.disconnect":
                    return
                await self._outbox.room()
                try:
                    await self._handle(message)
                except ProtocolError as error:
                    self._fail(error)
        finally:
            first.cancel()

    def _expire(self) -> None:
        if self._session is None and self._code is None:
            self._fail(ProtocolError("state", f"expected start within {_START_SECONDS:g} s, got none"))
            self._close(POLICY)

    async def _handle(self, message: MutableMapping[str, Any]) -> None:
        data = message.get("bytes")
        if data is None:
            raise ProtocolError("malformed", "message: expected binary MessagePack, got text")
        request = self._decoder.decode(data)
        if isinstance(request, protocol.Ack | protocol.Image):
            self._take(request)
            return
        if not self._requests.take():
            raise ProtocolError("rate", f"expected at most {_REQUESTS[0]:g} requests a second", request.id)
        try:
            await self._answer(request)
        except ProtocolError as error:
            error.id = request.id
            raise
        except WavecoreError as error:
            raise ProtocolError(input_error_code(error), str(error), request.id) from None

    def _take(self, data: protocol.Ack | protocol.Image) -> None:
        if not self._data.take():
            raise ProtocolError("rate", f"expected at most {_DATA[0]:g} messages of data a second")
        if self._code is not None:
            return  # of frames that were under way when the session ended
        session = self._running()
        try:
            if isinstance(data, protocol.Ack):
                session.acknowledge(data)
            else:
                session.asked = time.monotonic()
                session.image(data.data)
        except WavecoreError as error:
            raise ProtocolError(input_error_code(error), str(error)) from None

    def _running(self) -> LiveSession:
        if self._session is None:
            raise ProtocolError("state", "expected a session that was started, got none")
        return self._session

    async def _answer(self, request: Any) -> None:
        now = time.monotonic()
        if isinstance(request, protocol.Ping):
            self._outbox.reply(protocol.Pong(id=request.id, time=now))
            return
        if isinstance(request, protocol.Start | protocol.Attach):
            await self._begin(request)
            return
        session = self._running()
        session.asked = now
        if isinstance(request, protocol.Update):
            session.update(request)
            self._outbox.reply(protocol.Accepted(id=request.id, time=now))
            return
        if isinstance(request, protocol.Seek):
            session.seek(request.position)
        elif isinstance(request, protocol.Pause):
            session.pause()
        elif isinstance(request, protocol.Resume):
            session.resume()
        self._outbox.reply(protocol.Okay(id=request.id, time=now))
        if isinstance(request, protocol.Stop):
            await self._sessions.close(session, "stopped")

    async def _begin(self, request: protocol.Start | protocol.Attach) -> None:
        """Check who asks, then open a session or give the old one back."""
        if self._session is not None:
            raise ProtocolError("state", "expected one session a connection, got a second start")
        try:
            if request.protocol != protocol.PROTOCOL:
                text = f"protocol: expected {protocol.PROTOCOL}, got {request.protocol}"
                raise ProtocolError("protocol", text)
            if not self._gate.knows_token(request.token):
                raise ProtocolError("unauthorized", "token: expected the server's token")
            if isinstance(request, protocol.Start):
                session = await self._sessions.open(request, self._ended)
            else:
                session = self._sessions.find(request.session, self._ended)
        except ProtocolError as error:
            error.id = request.id
            codes = {"busy": TRY_LATER, "not_ready": TRY_LATER, "unauthorized": POLICY, "protocol": POLICY}
            if error.code in codes:
                self._fail(error)
                self._close(codes[error.code])
                return
            raise
        self._session = session
        stream = session.stream
        self._outbox.reply(
            protocol.Started(
                id=request.id,
                session=session.token,
                recording=f"/v1/recordings/{session.recording_key}",
                protocol=protocol.PROTOCOL,
                size=stream.size,
                fps=stream.fps,
                group=stream.group,
                control=stream.control,
                codec=session.codec,
                decoder=session.decoder,
                position=session.position,
                version=session.version,
                time=time.monotonic(),
            )
        )
        session.attach(self._outbox)
