"""Messages between two ranks: a fixed header on the host, and one flat body of tensors."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Sequence
from copy import copy
from datetime import timedelta
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.errors import WavecoreError
from wavecore.placement.layers.messages import Message
from wavecore.placement.layers.streams import Mark

HEADER_BYTES = 16_384
_ALIGN = 64  # bytes: kernels see the same alignment as in a fresh tensor
_FOR_EVER = timedelta(days=365)
_DEVICES = "kind of device"


def agree_on_devices(store: dist.Store, device: torch.device) -> None:
    """Tell the other ranks on what kind of device the first one computes: bodies go from like to like."""
    store.set(_DEVICES, device.type)


def own_device(store: dist.Store) -> torch.device:
    """Device of a rank other than the first: where that one has a GPU, a GPU by the number in `LOCAL_RANK`.

    Raises
    ------
    RuntimeError
        There is no GPU here.
    """
    store.wait([_DEVICES], _FOR_EVER)  # the first rank may load its model meanwhile
    if store.get(_DEVICES) != b"cuda":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise RuntimeError("expected a GPU, since the first rank has one, got none")
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


class _Envelope(msgspec.Struct):
    message: Message
    tensors: list[tuple[str, tuple[int, ...]]]
    bytes: int


class BufferPool:
    """Flat byte buffers by size, used again only after what read or wrote them before."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._free: dict[int, list[tuple[Tensor, Mark]]] = {}

    def take(self, size: int) -> Tensor:
        """A buffer of `size` bytes, for the calling thread."""
        free = self._free.get(size)
        if not free:
            return torch.empty(size, dtype=torch.uint8, device=self._device)
        buffer, given_back = free.pop()
        given_back.wait()
        return buffer

    def give_back(self, buffer: Tensor) -> None:
        """Let a buffer be used again after what the calling thread has given the device to do."""
        same = self._free.setdefault(buffer.numel(), [])
        if len(same) < 4:
            same.append((buffer, Mark(self._device)))
        elif self._device.type == "cuda":
            buffer.record_stream(torch.cuda.current_stream(self._device))


class Channel:
    """One rank's end of the ring.

    Parameters
    ----------
    store : torch.distributed.Store
        Through which the ranks find each other.
    rank, size : int
    device : torch.device
        Of the bodies: gloo carries those of the host, NCCL those of a GPU. Headers are the host's.
    outstanding : int
        Messages that may be on their way to one rank before `send` waits for the oldest.

    Attributes
    ----------
    messages : int
        Sends so far: two for each message with a body, one without.
    whole : bool
        False once an interrupt has broken `send` off: the receiver waits for the rest and reads nothing else.
    """

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        device: torch.device | None = None,
        outstanding: int = 2,
    ) -> None:
        self.rank, self.size = rank, size
        self.device = torch.device("cpu") if device is None else device
        self._store = store
        self._headers: Any = dist.ProcessGroupGloo(dist.PrefixStore("headers", store), rank, size, _FOR_EVER)
        self._nccl: dict[tuple[int, int], Any] = {}
        self._outstanding = outstanding
        self._sent: dict[int, deque[tuple[list[Any], list[Tensor], Tensor | None]]] = {}
        self._pool = BufferPool(self.device)
        self._encoder, self._decoder = msgspec.msgpack.Encoder(), msgspec.msgpack.Decoder(_Envelope)
        self.messages = 0
        self.whole = True

    def beside(self) -> Channel:
        """The same connections for another thread, with buffers of its own."""
        other = copy(self)
        other._sent, other._pool = {}, BufferPool(self.device)
        return other

    def _bodies(self, source: int, lane: int) -> Any:
        """What carries the bodies that `source` sends on a lane.

        NCCL ignores tags and runs what it is given in order, so that two ranks that send to each other at the
        same time would wait for each other: every direction and lane has a group of its own.
        """
        if self.device.type != "cuda":
            return self._headers
        group = self._nccl.get((source, lane))
        if group is None:
            store = dist.PrefixStore(f"bodies {source} {lane}", self._store)
            options = dist.ProcessGroupNCCL.Options()
            group = self._nccl[source, lane] = dist.ProcessGroupNCCL(store, self.rank, self.size, options)
        return group

    def send(self, to: int, message: Message, tensors: Sequence[Tensor] = (), lane: int = 0) -> int:
        """Send without waiting for the receiver, as long as few messages are on their way; returns bytes.

        Messages of one lane come in order; another lane does not wait for them.
        """
        described = [(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for tensor in tensors]
        sizes = [_padded(tensor.nbytes) for tensor in tensors]
        encoded = self._encoder.encode(_Envelope(message, described, sum(sizes)))
        if len(encoded) > HEADER_BYTES - 8:
            raise WavecoreError(
                f"ring: expected a header of at most {HEADER_BYTES} bytes, got {len(encoded)}"
            )
        self.whole = False
        header = torch.zeros(HEADER_BYTES, dtype=torch.uint8, device="cpu")
        header[:8] = torch.tensor([len(encoded)], device="cpu").view(torch.uint8)
        header[8 : 8 + len(encoded)] = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
        works, body = [self._headers.send([header], to, 2 * lane)], None
        if sum(sizes):
            body, start = self._pool.take(sum(sizes)), 0
            for tensor, size in zip(tensors, sizes, strict=True):
                part = body[start : start + tensor.nbytes].view(tensor.dtype)
                part.copy_(tensor.reshape(-1))
                start += size
            works.append(self._bodies(self.rank, lane).send([body], to, 2 * lane + 1))
        self.messages += len(works)
        queue = self._sent.setdefault(to, deque())
        queue.append((works, [header], body))
        self.whole = True
        while len(queue) > self._outstanding:
            self._complete(queue)
        return sum(sizes)

    def receive(self, source: int, lane: int = 0) -> tuple[Message, list[Tensor], Tensor | None]:
        """Wait for the next message of a rank on a lane.

        Of a body on a GPU only the stream of the calling thread waits, not the host.

        Returns
        -------
        message, tensors, body
            The tensors are views of the body; give the body to `done` when they are not read any more.
        """
        header = torch.empty(HEADER_BYTES, dtype=torch.uint8, device="cpu")
        self._headers.recv([header], source, 2 * lane).wait()
        raw = header.numpy()
        length = int(raw[:8].view("int64")[0])
        envelope = self._decoder.decode(raw[8 : 8 + length].tobytes())
        if not envelope.bytes:
            return envelope.message, [], None
        body = self._pool.take(envelope.bytes)
        self._bodies(source, lane).recv([body], source, 2 * lane + 1).wait()
        tensors, start = [], 0
        for name, shape in envelope.tensors:
            dtype = getattr(torch, name)
            count = torch.Size(shape).numel() * dtype.itemsize
            tensors.append(body[start : start + count].view(dtype).reshape(shape))
            start += _padded(count)
        return envelope.message, tensors, body

    def done(self, body: Tensor | None) -> None:
        """Nothing reads a received body any more."""
        if body is not None:
            self._pool.give_back(body)

    def flush(self) -> None:
        """Wait until everything was taken by its receiver."""
        for queue in self._sent.values():
            while queue:
                self._complete(queue)
        if self.device.type == "cuda":  # where to wait for a send lets only the stream wait
            torch.cuda.current_stream(self.device).synchronize()

    def _complete(self, queue: deque[tuple[list[Any], list[Tensor], Tensor | None]]) -> None:
        works, _, body = queue.popleft()
        for work in works:
            work.wait()
        self.done(body)


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN
