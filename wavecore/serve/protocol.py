"""Messages of a live stream: one WebSocket a session, MessagePack maps with a `type`; see docs/serve.md.

A client sends requests, each with an `id`, and gets exactly one reply to each, with the same `id`: `okay`,
`accepted`, `started`, `pong` or `error`. Acknowledgements and images have no reply unless they are wrong.
Everything else comes unasked. Times are seconds of the server's monotonic clock unless said otherwise.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, Union

import msgspec
from msgspec import Meta, Struct

PROTOCOL = 1
CONTROL_BYTES = 64 * 1024  # largest request that is not an image
IMAGE_BYTES = 2 * 1024 * 1024

Code = Literal[
    "malformed",  # not MessagePack, or text
    "invalid",  # a field is missing, unknown, of the wrong type, or out of range
    "too_large",
    "rate",  # more requests than allowed
    "protocol",  # another version of the protocol
    "unauthorized",  # the token is missing or wrong
    "state",  # not possible now: not started, or started already
    "busy",  # another session would break the latency objective; `retry_after` seconds
    "not_ready",  # the model is still being loaded
    "unknown_session",  # ended, or too long ago
    "range",  # no such position
    "unsupported",  # not possible with this model or control
    "failed",  # the server's own failure
]
Codec = Literal["h264", "jpeg"]
Control = Literal["speculative", "free"]
Identifier = Annotated[int, Meta(ge=0, lt=2**53)]
Whole = Annotated[int, Meta(ge=0, lt=2**53)]
Text = Annotated[str, Meta(max_length=4_000)]
Token = Annotated[str, Meta(max_length=200)]


# -- from the client ---------------------------------------------------------------------


class Request(Struct, tag_field="type", tag=str.lower, kw_only=True, forbid_unknown_fields=True):
    """What has a reply."""

    id: Identifier


class Start(Request):
    """Begin a stream.

    Attributes
    ----------
    protocol : int
        Version of these messages that the client speaks.
    size : (width, height), optional
        Pixels; the model's own when left out.
    control : "speculative" or "free", optional
        The first where the rounds allow it, when left out; always free with images.
    source : "prompt" or "images"
        With images, the stream restyles what `image` messages bring.
    strength : float, optional
        Share of noise to begin with when restyling.
    token : str, optional
        Where the server asks for one.
    """

    protocol: int
    prompt: Text
    seed: Whole = 0
    steps: Annotated[int, Meta(ge=1, le=50)] = 4
    rounds: Literal["wavefront", "sequential", "stream_batch"] | None = None
    placement: Literal["local"] = "local"
    control: Control | None = None
    size: tuple[Annotated[int, Meta(ge=16, le=2048)], Annotated[int, Meta(ge=16, le=2048)]] | None = None
    fps: Annotated[float, Meta(gt=0, le=60)] | None = None
    codec: Codec = "h264"
    source: Literal["prompt", "images"] = "prompt"
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None
    token: Token | None = None


class Attach(Request):
    """Go on with a session whose connection was lost, at the next position that is not committed."""

    protocol: int
    session: Token
    token: Token | None = None


class Update(Request):
    """Ask for another prompt, over `transition` chunks."""

    prompt: Text
    transition: Annotated[int, Meta(ge=1, le=64)] = 1


class Pause(Request):
    """Stop the stream's clock."""


class Resume(Request):
    """Let the stream's clock go on."""


class Seek(Request):
    """Go to a position: one of the retained past, or one that is predicted but not played."""

    position: Whole


class Stop(Request):
    """End the session."""


class Ping(Request):
    """Ask for the server's time."""


class Ack(Struct, tag_field="type", tag="ack", forbid_unknown_fields=True):
    """What became of frames, by their `number`.

    Attributes
    ----------
    received : int
        Number of the latest frame that was decoded: the server sends only so many beyond it.
    displayed : list of (number, time)
        Frames that were shown, with the server's time as the client reckons it.
    skipped : list of int
        Frames that came too late to be shown.
    """

    received: Whole
    displayed: Annotated[list[tuple[Whole, float]], Meta(max_length=256)] = []
    skipped: Annotated[list[Whole], Meta(max_length=256)] = []


class Image(Struct, tag_field="type", tag="image", forbid_unknown_fields=True):
    """A frame to restyle: JPEG or PNG, scaled to the stream's size."""

    data: Annotated[bytes, Meta(min_length=1, max_length=IMAGE_BYTES)]


ClientMessage = Union[Start, Attach, Update, Pause, Resume, Seek, Stop, Ping, Ack, Image]  # noqa: UP007


# -- from the server ---------------------------------------------------------------------


class Reply(Struct, tag_field="type", tag=str.lower, kw_only=True):
    """Answers the request of the same `id`; None when that could not be read."""

    id: int | None


class Started(Reply):
    """A session runs.

    Attributes
    ----------
    session : str
        Token with which to `attach` after a lost connection.
    recording : str
        Path of the mp4 of what was displayed.
    decoder : str
        Codec string for WebCodecs, or the media type of still images.
    group : int
        Frames of a position but the first, which has one.
    position : int
        The next to come.
    version : int
        Prompt version it follows.
    """

    session: str
    recording: str
    protocol: int
    size: tuple[int, int]
    fps: float
    group: int
    control: Control
    codec: Codec
    decoder: str
    position: int
    version: int
    time: float


class Okay(Reply):
    """Done."""

    time: float


class Accepted(Reply):
    """An update is on its way; its `record` follows."""

    time: float


class Pong(Reply):
    """The server's time."""

    time: float


class Error(Reply):
    """A request came to nothing, or, without `id`, the session did."""

    code: Code
    message: str
    retry_after: float | None = None


class Frame(Struct, tag_field="type", tag="frame", gc=False):
    """One frame; each position begins with a key frame, so it can be decoded on its own.

    Attributes
    ----------
    number : int
        Counts the frames sent.
    position, frame, frames : int
        Position, frame of it, and how many it has.
    version : int
        Prompt version it follows.
    pts : float
        Its time in the video, in seconds.
    ready, due : float
        When its pixels were there, and when it is to be shown.
    commit : (int, int, int)
        Ends of the irrevocable, the locked and the replaceable positions.
    replay : bool
        Sent before; the viewer went back to it.
    data : bytes
        H.264 access unit (Annex B, with parameter sets at key frames), or a JPEG file.
    """

    number: int
    position: int
    frame: int
    frames: int
    version: int
    pts: float
    ready: float
    due: float
    commit: tuple[int, int, int]
    replay: bool
    key: bool
    data: bytes


class Record(Struct, tag_field="type", tag="record"):
    """What became of an update.

    Attributes
    ----------
    update : int or None
        `id` of the request; None for the prompt of `start`.
    outcome : str
        displayed, superseded, identical or lost.
    wait, generation, alignment : float or None
        R, C and Q in seconds.
    transport : float or None
        From the server's playback to the viewer's; None until the viewer has said so.
    """

    update: int | None
    version: int
    outcome: str
    arrival: float | None = None
    start: float | None = None
    ready: float | None = None
    display: float | None = None
    wait: float | None = None
    generation: float | None = None
    alignment: float | None = None
    shown: float | None = None
    transport: float | None = None


class State(Struct, tag_field="type", tag="state"):
    """The stream as it stands; only the latest is sent.

    Attributes
    ----------
    cursor : int
        Next position to play.
    commit : (int, int, int)
        See `Frame`.
    retained : int
        Oldest position to which `seek` goes back.
    version : int
        Latest version asked for.
    versions : list of (first, end, version)
        Runs of positions around the cursor that follow one version.
    invalidated : list of (first, end)
        Predictions that were replaced since the message before.
    counters : dict
        displayed, skipped, dropped, underruns, superseded, discarded, updates, calls: whole numbers.
    amplification, waste, load : float
        A, w and ρ.
    """

    cursor: int
    commit: tuple[int, int, int]
    retained: int
    version: int
    paused: bool
    versions: list[tuple[int, int, int]]
    invalidated: list[tuple[int, int]]
    counters: dict[str, int]
    amplification: float
    waste: float
    load: float


class Ended(Struct, tag_field="type", tag="ended"):
    """The session is over: stopped, idle, lifetime, shutdown or failed."""

    reason: str


ServerMessage = Union[Started, Okay, Accepted, Pong, Error, Frame, Record, State, Ended]  # noqa: UP007


class ProtocolError(Exception):
    """A message that cannot be followed.

    Parameters
    ----------
    code : str
    message : str
    id : int, optional
        Of the request.
    retry_after : float, optional
        Seconds.
    """

    def __init__(
        self, code: Code, message: str, id: int | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.message, self.id, self.retry_after = code, message, id, retry_after

    def reply(self) -> Error:
        """As a message."""
        return Error(id=self.id, code=self.code, message=self.message, retry_after=self.retry_after)


class ClientDecoder:
    """Reads what clients send."""

    def __init__(self) -> None:
        self._typed = msgspec.msgpack.Decoder(ClientMessage)
        self._any = msgspec.msgpack.Decoder()

    def decode(self, data: bytes) -> ClientMessage:
        """Decode one message.

        Raises
        ------
        ProtocolError
            malformed, invalid or too_large; carries the request's id where it has one.
        """
        if len(data) > IMAGE_BYTES + 1_024:
            raise ProtocolError(
                "too_large", f"message: expected at most {IMAGE_BYTES} bytes, got {len(data)}"
            )
        try:
            message = self._typed.decode(data)
        except msgspec.ValidationError as error:
            raise ProtocolError("invalid", f"message: {error}", self._id(data)) from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError("malformed", f"message: expected MessagePack: {error}") from None
        if len(data) > CONTROL_BYTES and not isinstance(message, Image):
            text = f"message: expected at most {CONTROL_BYTES} bytes, got {len(data)}"
            raise ProtocolError("too_large", text, getattr(message, "id", None))
        return message

    def _id(self, data: bytes) -> int | None:
        try:
            content: Any = self._any.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None
        found = content.get("id") if isinstance(content, dict) else None
        return found if type(found) is int and 0 <= found < 2**53 else None
