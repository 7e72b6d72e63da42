"""What the process of a session and the ranks of its stages tell each other."""

from __future__ import annotations

import hashlib
import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from wavecore.cache.edits import Edit
from wavecore.placement.exchange import ExchangeMode, Transport
from wavecore.placement.segment import Layout
from wavecore.rounds import CallRules, NoiseLevel, Rules, StageMap
from wavecore.rounds import Round as WaveRound

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


def encode(message: Any) -> bytes:
    """A message as bytes. Tensors are bytes too, not files that the sender would have to keep."""
    return pickle.dumps(message)


def send(connection: Connection, message: Any) -> None:
    """Send a message."""
    connection.send_bytes(encode(message))


def receive(connection: Connection) -> Any:
    """Take the next message; `EOFError` when the other side has ended."""
    return pickle.loads(connection.recv_bytes())


def hang_up(connection: Connection) -> None:
    """Send no more: the other side reads what was sent, then the end."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Setup:
    """To a rank, first of all: which it is, and how the exchange works."""

    rank: int
    map: StageMap
    mode: ExchangeMode
    transport: Transport
    generations: int
    layouts: Sequence[Layout]
    timeout: float
    record: bool
    threads: int
    core: int | None
    spin_us: float
    link_bytes_per_us: float
    device: str | None


@dataclass(frozen=True)
class Hello:
    """From a rank, in reply: who it is, how others reach its memory, and each that sends here its pages."""

    rank: int
    pid: int
    version: str
    checksum: str
    handle: bytes
    port: int
    pages: Mapping[int, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Peers:
    """To a rank: how it reaches the others. Its reply is `Ready`."""

    handles: Sequence[bytes]
    host: str
    port: int
    pages: Mapping[int, bytes]


@dataclass(frozen=True)
class Ready:
    """From a rank: it has reached the others."""


@dataclass(frozen=True)
class Begin:
    """To a rank: a stream begins; `chunks` is None while its end is not known."""

    number: int
    rules: Rules
    levels: Sequence[NoiseLevel]
    seed: int
    first_tick: int
    chunks: int | None


@dataclass(frozen=True)
class BeginCalls:
    """To a rank: a stream of calls begins, whose rounds come one by one, until `End`."""

    number: int
    rules: CallRules
    levels: Sequence[NoiseLevel]
    seed: int


@dataclass(frozen=True)
class Plan:
    """To every rank: the next round of calls.

    Attributes
    ----------
    index : int
        Number of the round in the stream.
    round : Round
    edits : sequence of Edit
        What changes in the page table before it.
    texts : mapping of int by chunk
        Version of the condition of each slot.
    old_texts : sequence of int
        Versions that no later round uses.
    clean : ndarray [c, f, h, w], optional
        To the rank of the store only: input of a store pass that follows no denoising.
    """

    index: int
    round: WaveRound
    edits: Sequence[Edit]
    texts: Mapping[int, int]
    old_texts: Sequence[int] = ()
    clean: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class Over:
    """From the rank with the cleanest estimate of a round of calls: it is through with it.

    `latent` is the one that the round has completed, if any.
    """

    index: int
    latent: NDArray[np.float32] | None


@dataclass(frozen=True)
class Text:
    """To a rank: cross-attention keys and values of a condition, one [1, l, h, d] a layer."""

    version: int
    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @staticmethod
    def of(version: int, keys: Sequence[Tensor], values: Sequence[Tensor]) -> Text:
        """A condition from any device."""
        return Text(version, tuple(key.cpu() for key in keys), tuple(value.cpu() for value in values))


@dataclass(frozen=True)
class Enter:
    """To a rank: the next chunk enters, and so the next tick begins.

    `levels` are its own where they differ from the stream's; `source`, to the rank of the first stage only,
    is what it starts from where that is not noise alone.
    """

    chunk: int
    version: int
    levels: Sequence[NoiseLevel] | None = None
    source: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class End:
    """To a rank: the stream has this many chunks; one of calls is over."""

    chunks: int


@dataclass(frozen=True)
class NoChunk:
    """To a rank: the next tick begins, and no chunk enters; those under way go on."""


@dataclass(frozen=True)
class Abort:
    """To a rank: give up, for this reason."""

    reason: str


@dataclass(frozen=True)
class Wanted:
    """From a rank that has nothing to do: a tick in which it will have."""

    tick: int


@dataclass(frozen=True)
class Complete:
    """From the last denoising stage: the final latent [c, f, h, w] of a chunk."""

    number: int
    chunk: int
    latent: NDArray[np.float32]


@dataclass(frozen=True)
class Round:
    """From a rank, when the log is kept: a stage is through with a round."""

    number: int
    stage: int
    index: int
    chunk: int
    begin: float
    end: float
    records: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Finished:
    """From a rank: its part of a stream is over."""

    number: int
    bytes_sent: int


@dataclass(frozen=True)
class Failed:
    """From a rank: it gives up."""

    reason: str


def checksum(module: nn.Module) -> str:
    """Short text that differs when the weights do."""
    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(module.state_dict().items()):
        bits = tensor.detach().cpu().contiguous().view(torch.uint8).flatten()
        words = bits[: bits.numel() // 8 * 8].view(torch.int64)
        # Sums of words: they run at the speed of the memory, unlike a cryptographic digest.
        sums = [int(words[offset::2].sum()) for offset in range(2)]
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype} {sums} {bits[-8:].tolist()}".encode())
    return digest.hexdigest()
