"""Encoding and decoding on any rank of a ring, beside its layers."""

from __future__ import annotations

import os
import pickle
import queue
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

import torch
from torch import Tensor

from wavecore.errors import WavecoreError
from wavecore.models.stream import Stream, StreamingVAE
from wavecore.placement.layers.channel import Channel
from wavecore.placement.layers.messages import Code, Stop
from wavecore.placement.layers.streams import Mark, own_stream
from wavecore.transfer import on_host

LANE = 2  # apart from rounds and from layers that change hands


def packed(vae: StreamingVAE) -> Tensor:
    """A VAE as bytes, uint8 [n]; for the processes of one ring, which trust each other."""
    sent = on_host(vae) if isinstance(vae, torch.nn.Module) else vae
    return torch.frombuffer(bytearray(pickle.dumps(sent)), dtype=torch.uint8)


class CodecService:
    """Encodes and decodes what the first rank sends, in a thread of its own.

    Parameters
    ----------
    channel : Channel
        Of this thread alone.
    data : Tensor uint8 [n]
        The VAE; see `packed`.
    device_lock : threading.Lock
        Held while it works and while the rank runs layers: the device does one thing at a time, and what is
        measured of each is its own.
    """

    def __init__(self, channel: Channel, data: Tensor, device_lock: threading.Lock) -> None:
        self._channel, self._lock = channel, device_lock
        self._vae: StreamingVAE = pickle.loads(data.cpu().numpy().tobytes())
        if isinstance(self._vae, torch.nn.Module):
            self._vae.to(channel.device)
        self._streams: dict[int, Stream] = {}
        self.thread = threading.Thread(target=self._serve, name="codec", daemon=True)
        self.thread.start()

    @torch.inference_mode()
    def _serve(self) -> None:
        with own_stream(self._channel.device):
            self._serve_all()

    def _serve_all(self) -> None:
        while True:
            try:
                message, tensors, body = self._channel.receive(0, LANE)
            except RuntimeError:  # the first rank is gone; the rank's own thread says so
                return
            if isinstance(message, Stop):
                self._channel.flush()
                return
            assert isinstance(message, Code)
            try:
                with self._lock:
                    began = time.perf_counter()
                    answer = self._answer(message, tensors)
                    if self._channel.device.type == "cuda":  # for its time; nobody else waits for this thread
                        torch.cuda.current_stream(self._channel.device).synchronize()
                    seconds = time.perf_counter() - began
            except Exception:  # nobody waits for this thread: the rank ends, which the first one reports
                traceback.print_exc()
                os._exit(1)
            self._channel.done(body)
            if message.task != "end":
                answered = Code(message.stream, message.task, seconds)
                self._channel.send(0, answered, [] if answer is None else [answer], LANE)

    def _answer(self, message: Code, tensors: list[Tensor]) -> Tensor | None:
        if message.task == "end":
            self._streams.pop(message.stream, None)
            return None
        stream = self._streams.get(message.stream)
        if stream is None:
            make = self._vae.stream_decoder if message.task == "decode" else self._vae.stream_encoder
            stream = self._streams[message.stream] = make()
        return stream.flush() if message.task == "flush" else stream(tensors[0].clone()).contiguous()


_Answer = tuple[Tensor, Mark]  # and since when it is there


def _taken(answer: Future[_Answer | None]) -> Tensor | None:
    """Wait for an answer of another thread and take it over."""
    arrived = answer.result()
    if arrived is None:
        return None
    tensor, there = arrived
    there.wait([tensor])
    return tensor


class CodecClient:
    """The first rank's side of the VAE of another rank.

    Parameters
    ----------
    channel : Channel
        Of the calling thread and one more.
    rank : int
        Which has the VAE.
    lost : callable (rank, error) -> str
        What to say when the connection ends.

    Attributes
    ----------
    worked : float
        Seconds that the other rank has worked.
    waited : float
        Seconds that this one has waited for latents.
    """

    def __init__(self, channel: Channel, rank: int, lost: Callable[[int, RuntimeError], str]) -> None:
        self.rank = rank
        self.worked = self.waited = 0.0
        self._channel, self._lost = channel, lost
        self._asked: queue.SimpleQueue[Future[_Answer | None]] = queue.SimpleQueue()
        self._sending = threading.Lock()
        self._streams = 0
        self.thread = threading.Thread(target=self._receive, name="codec answers", daemon=True)
        self.thread.start()

    @property
    def whole(self) -> bool:
        """See `Channel`."""
        return self._channel.whole

    def stream(self) -> int:
        """Number of a new encoder or decoder."""
        self._streams += 1
        return self._streams

    def ask(self, message: Code, tensor: Tensor | None = None) -> Future[_Answer | None]:
        """Send something to do; the answers come in the same order."""
        answer: Future[_Answer | None] = Future()
        with self._sending:
            try:
                self._channel.send(self.rank, message, [] if tensor is None else [tensor], LANE)
            except RuntimeError as error:
                answer.set_exception(self._fault(error))
                return answer
            if message.task == "end":
                answer.set_result(None)
            else:
                self._asked.put(answer)
        return answer

    def wait(self, answer: Future[_Answer | None]) -> Tensor | None:
        """The answer, once it is there."""
        began = time.perf_counter()
        try:
            return _taken(answer)
        finally:
            self.waited += time.perf_counter() - began

    def close(self) -> None:
        """End the service; the thread here ends with the ring."""
        with self._sending:
            self._channel.send(self.rank, Stop(), lane=LANE)
            self._channel.flush()

    def _receive(self) -> None:
        receiving = self._channel.beside()
        try:
            with own_stream(receiving.device):
                while True:
                    answer = self._asked.get()
                    message, tensors, body = receiving.receive(self.rank, LANE)
                    assert isinstance(message, Code)
                    self.worked += message.seconds
                    result = tensors[0].clone() if tensors else None
                    answer.set_result(None if result is None else (result, Mark(receiving.device)))
                    receiving.done(body)
        except RuntimeError as error:
            fault = self._fault(error)
            while True:
                answer.set_exception(fault)
                answer = self._asked.get()

    def _fault(self, error: RuntimeError) -> WavecoreError:
        return WavecoreError(f"ring: {self._lost(self.rank, error)}; the stream cannot go on")


class RemoteEncoder:
    """An encoder stream on another rank; called like `Stream`."""

    def __init__(self, client: CodecClient) -> None:
        self._client, self._stream = client, client.stream()

    def __call__(self, frames: Tensor) -> Tensor:
        """Latents of frames [1, 3, f, h, w]."""
        return self.begin(frames)()

    def begin(self, frames: Tensor) -> Callable[[], Tensor]:
        """Have frames encoded, and go on; what is returned waits for their latents."""
        asked = self._client.ask(Code(self._stream, "encode"), frames)

        def latents() -> Tensor:
            encoded = self._client.wait(asked)
            assert encoded is not None
            return encoded

        return latents

    def flush(self) -> Tensor | None:
        """Latents that the encoder has held back, and its end."""
        latents = self._client.wait(self._client.ask(Code(self._stream, "flush")))
        self._client.ask(Code(self._stream, "end"))
        return latents


class RemoteDecoder:
    """A decoder stream on another rank: latents in with `put`, frames out of `get` in the same order."""

    def __init__(self, client: CodecClient) -> None:
        self._client, self._stream = client, client.stream()
        self._waiting: deque[Future[_Answer | None]] = deque()

    def put(self, latent: Tensor) -> None:
        """Give the next latent, [1, c, 1, h, w]."""
        self._waiting.append(self._client.ask(Code(self._stream, "decode"), latent))

    def get(self) -> Tensor:
        """Wait for the frames [1, 3, n, h, w] in [-1, 1] of the oldest latent given."""
        frames = _taken(self._waiting.popleft())
        assert frames is not None
        return frames

    @property
    def waiting(self) -> int:
        """Latents whose frames were not taken yet."""
        return len(self._waiting)

    @property
    def ready(self) -> bool:
        """Whether `get` would not wait."""
        return bool(self._waiting) and self._waiting[0].done()

    def close(self) -> None:
        """Forget the stream."""
        self._waiting.clear()
        self._client.ask(Code(self._stream, "end"))


class RingVAE:
    """The VAE of a ring, whose encoder and decoder may each be on another rank.

    Parameters
    ----------
    vae : StreamingVAE
    clients : mapping of rank to CodecClient
    encode_on, decode_on : int
        Ranks.
    """

    def __init__(
        self, vae: StreamingVAE, clients: Mapping[int, CodecClient], encode_on: int, decode_on: int
    ) -> None:
        self.vae, self._clients = vae, clients
        self._encode_on, self._decode_on = encode_on, decode_on
        self.temporal_factor, self.spatial_factor = vae.temporal_factor, vae.spatial_factor

    @property
    def encodes_elsewhere(self) -> bool:
        """Whether another rank encodes, at the same time as this one does something else."""
        return self._encode_on in self._clients

    def stream_encoder(self) -> Any:
        """Encoder of one stream, here or on another rank."""
        client = self._clients.get(self._encode_on)
        return self.vae.stream_encoder() if client is None else RemoteEncoder(client)

    def remote_decoder(self) -> RemoteDecoder | None:
        """Decoder of one stream on another rank; None when it is here."""
        client = self._clients.get(self._decode_on)
        return None if client is None else RemoteDecoder(client)
