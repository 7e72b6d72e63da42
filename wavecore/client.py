"""A viewer in Python: connects to `wavecore serve`, shows frames as arrays, and measures what it sees.

```python
from wavecore.client import Client

with Client("http://127.0.0.1:7860") as client:
    client.start("a red ball rolling left over grass")
    for frame in client:  # frame.image uint8 [h, w, 3], frame.position, frame.version, frame.pts
        if (frame.position, frame.header.frame) == (8, 0):  # a position has several frames
            client.update("a blue star flying up")
```
"""

from __future__ import annotations

import itertools
import queue
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlsplit

import msgspec
import numpy as np

from wavecore.errors import UsageError, WavecoreError
from wavecore.serve import protocol

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from typing_extensions import Self

_PINGS = 5
_TIMEOUT = 30.0


class ServerError(WavecoreError):
    """The server refused a request.

    Attributes
    ----------
    code : str
        See `wavecore.serve.protocol.Code`.
    retry_after : float or None
        Seconds.
    """

    def __init__(self, error: protocol.Error) -> None:
        super().__init__(f"{error.code}: {error.message}")
        self.code, self.retry_after = error.code, error.retry_after


@dataclass(frozen=True)
class ClientFrame:
    """One frame as it was shown.

    Attributes
    ----------
    header : Frame
        Position, version, commit state and times; see `wavecore.serve.protocol.Frame`.
    image : ndarray uint8 [h, w, 3] or None
        RGB; None when decoding was not asked for.
    shown : float
        When it was handed out, in seconds of the server's clock.
    """

    header: protocol.Frame
    image: NDArray[np.uint8] | None
    shown: float

    @property
    def position(self) -> int:
        """Position of its latent."""
        return self.header.position

    @property
    def version(self) -> int:
        """Prompt version it follows."""
        return self.header.version

    @property
    def pts(self) -> float:
        """Time in the video, in seconds."""
        return self.header.pts


class Client:
    """One connection. Iterate for its frames: each is handed out when due and acknowledged as displayed.

    Requests may be made from any thread. Each waits for its reply and raises `ServerError` when that is one.

    Parameters
    ----------
    url : str
        ``http://`` or ``https://`` address of the server.
    token : str, optional
        Where the server asks for one.
    decode : bool
        Turn frames into arrays.
    session : str, optional
        Token of a session to `attach` to: where several servers share the address, this leads to its own.

    Raises
    ------
    UsageError
        `url` is none.
    WavecoreError
        No connection can be made.

    Attributes
    ----------
    started : Started or None
        What the session is.
    state : State or None
        Latest state of the stream.
    errors : list of Error
        Errors without a request.
    ended : str or None
        Why the session is over.
    close_code : int or None
        Of the WebSocket.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:7860",
        token: str | None = None,
        decode: bool = True,
        session: str | None = None,
    ) -> None:
        from websockets.exceptions import InvalidHandshake
        from websockets.sync.client import connect

        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise UsageError(f"url: expected http://HOST:PORT, got {url}")
        scheme = "wss" if parts.scheme == "https" else "ws"
        query = "" if session is None else "?worker=" + quote(session.partition(".")[0])
        self.started: protocol.Started | None = None
        self.state: protocol.State | None = None
        self._records: dict[int | None, protocol.Record] = {}
        self.errors: list[protocol.Error] = []
        self.ended: str | None = None
        self.close_code: int | None = None
        self._left = False
        self._token, self._decode = token, decode
        self._decoder: Any = None
        self._ids = itertools.count(1)
        self._replies: dict[int, Future[Any]] = {}
        self._lock = threading.Lock()
        self._frames: queue.Queue[protocol.Frame | None] = queue.Queue()
        self._encoder = msgspec.msgpack.Encoder()
        self._context = ExitStack()
        address = f"{scheme}://{parts.netloc}/v1/stream{query}"
        try:
            connection = connect(address, compression=None, max_size=None, open_timeout=_TIMEOUT)
        except (OSError, ValueError, InvalidHandshake) as error:
            raise WavecoreError(f"{url}: cannot connect: {error}") from error
        self._socket = self._context.enter_context(connection)
        self._reader = threading.Thread(target=self._read, name="wavecore-client", daemon=True)
        self._reader.start()
        self.offset = self._clock_offset()

    @property
    def records(self) -> list[protocol.Record]:
        """What became of updates, one record each, in order of arrival."""
        return list(self._records.values())

    # -- verbs ---------------------------------------------------------------------------

    def start(self, prompt: str, **options: Any) -> protocol.Started:
        """Begin a stream; options as in `wavecore.serve.protocol.Start`."""
        message = protocol.Start(
            id=next(self._ids), protocol=protocol.PROTOCOL, prompt=prompt, token=self._token, **options
        )
        return self._begin(message)

    def attach(self, session: str) -> protocol.Started:
        """Go on with a session whose connection was lost."""
        return self._begin(
            protocol.Attach(
                id=next(self._ids), protocol=protocol.PROTOCOL, session=session, token=self._token
            )
        )

    def update(self, prompt: str, transition: int = 1) -> int:
        """Ask for another prompt; returns the `update` of its record."""
        message = protocol.Update(id=next(self._ids), prompt=prompt, transition=transition)
        self.request(message)
        return message.id

    def pause(self) -> None:
        """Stop the stream's clock."""
        self.request(protocol.Pause(id=next(self._ids)))

    def resume(self) -> None:
        """Let it go on."""
        self.request(protocol.Resume(id=next(self._ids)))

    def seek(self, position: int) -> None:
        """Go to a position."""
        self.request(protocol.Seek(id=next(self._ids), position=position))

    def stop(self) -> None:
        """End the session; nothing happens where it is over already."""
        try:
            self.request(protocol.Stop(id=next(self._ids)))
        except WavecoreError:
            if self.ended is None:
                raise

    def send_image(self, data: bytes) -> None:
        """Send a JPEG or PNG file to restyle; there is no reply."""
        self.send(protocol.Image(data))

    def request(self, message: protocol.Request) -> Any:
        """Send a request and wait for its reply."""
        reply: Future[Any] = Future()
        with self._lock:
            self._replies[message.id] = reply
        self.send(message)
        answer = reply.result(_TIMEOUT)
        if isinstance(answer, protocol.Error):
            raise ServerError(answer)
        return answer

    def send(self, message: Any) -> None:
        """Send a message without waiting.

        Raises
        ------
        UsageError
            It holds a value that no message can.
        WavecoreError
            The connection is closed.
        """
        try:
            data = self._encoder.encode(message)
        except (OverflowError, TypeError, UnicodeEncodeError) as error:
            raise UsageError(f"{type(message).__name__.lower()}: cannot be sent: {error}") from None
        self.send_bytes(data)

    def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are.

        Raises
        ------
        WavecoreError
            The connection is closed.
        """
        from websockets.exceptions import ConnectionClosed

        try:
            self._socket.send(data)
        except ConnectionClosed as closed:
            code = None if closed.rcvd is None else closed.rcvd.code
            raise WavecoreError(f"connection closed ({code})") from None

    def close(self) -> None:
        """Leave; the server keeps the session for a while, unless it was stopped."""
        self._left = True
        self._context.close()
        self._reader.join(_TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- frames --------------------------------------------------------------------------

    def __iter__(self) -> Iterator[ClientFrame]:
        """Hand frames out when they are due, until the session ends or is left.

        Raises
        ------
        WavecoreError
            The connection was lost: `attach` goes on with the session, with another client.
        """
        while (header := self._frames.get()) is not None:
            wait = header.due - self.now()
            if wait > 0:
                time.sleep(wait)
            image = self._image(header) if self._decode else None
            shown = self.now()
            ack = protocol.Ack(received=header.number, displayed=[(header.number, shown)])
            with suppress(WavecoreError):  # what came before the end is handed out all the same
                self.send(ack)
            yield ClientFrame(header, image, shown)
        self._frames.put(None)  # for whoever iterates again
        if self.ended is None and not self._left:
            raise WavecoreError(f"connection lost ({self.close_code}), expected the session to end before")

    def now(self) -> float:
        """The server's clock as reckoned here, in seconds."""
        return time.monotonic() + self.offset

    def _image(self, header: protocol.Frame) -> NDArray[np.uint8] | None:
        assert self.started is not None
        if self.started.codec == "jpeg":
            from wavecore.serve.encode import decode_jpeg

            return decode_jpeg([header.data])[0]
        import av

        if self._decoder is None:
            self._decoder = av.CodecContext.create("h264", "r")
            self._decoder.thread_type = "NONE"
            self._decoder.options = {"flags": "low_delay"}
        width, height = self.started.size
        for frame in self._decoder.decode(av.Packet(header.data)):
            return frame.to_ndarray(format="rgb24")[:height, :width]
        return None

    # -- in ------------------------------------------------------------------------------

    def _begin(self, message: protocol.Request) -> protocol.Started:
        self.started = self.request(message)
        assert self.started is not None
        return self.started

    def _clock_offset(self) -> float:
        """Seconds from this clock to the server's, from the ping that came back soonest."""
        best = float("inf"), 0.0
        for _ in range(_PINGS):
            began = time.monotonic()
            pong = self.request(protocol.Ping(id=next(self._ids)))
            ended = time.monotonic()
            best = min(best, (ended - began, pong.time - (began + ended) / 2))
        return best[1]

    def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        decoder = msgspec.msgpack.Decoder(protocol.ServerMessage)
        try:
            while True:
                data = self._socket.recv()
                assert isinstance(data, bytes)
                self._take(decoder.decode(data))
        except ConnectionClosed as closed:
            self.close_code = None if closed.rcvd is None else closed.rcvd.code
        finally:
            self._frames.put(None)
            with self._lock:
                open_replies = list(self._replies.values())
                self._replies.clear()
            for reply in open_replies:
                reply.set_exception(WavecoreError(f"connection closed ({self.close_code})"))

    def _take(self, message: Any) -> None:
        if isinstance(message, protocol.Frame):
            self._frames.put(message)
        elif isinstance(message, protocol.State):
            self.state = message
        elif isinstance(message, protocol.Record):
            self._records[message.update] = message  # comes again when its first frame was shown
        elif isinstance(message, protocol.Ended):
            self.ended = message.reason
        else:
            with self._lock:
                reply = self._replies.pop(message.id, None)
            if reply is not None:
                reply.set_result(message)
            elif isinstance(message, protocol.Error):
                self.errors.append(message)
