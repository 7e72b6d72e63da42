"""Where the rounds of calls run: of one stream, whose keys and values stay there from call to call."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.cache.edits import Action, Edit, Edits
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement.device import SharedDevice, SharedPlacement
from wavecore.placement.handoff import Handoff
from wavecore.placement.local import LocalPlacement, Order, local_cache
from wavecore.rounds import CallRules, NoiseLevel, Round


@dataclass(frozen=True)
class CallStream:
    """A stream of calls, as a placement has to know it.

    Attributes
    ----------
    rules : CallRules
    levels : sequence of NoiseLevel
        One per denoising stage, and one for the store pass.
    seed : int
    latent : (channels, height, width)
        Of a latent frame.
    pool : PoolSize
        Pages for its keys and values.
    """

    rules: CallRules
    levels: Sequence[NoiseLevel]
    seed: int
    latent: tuple[int, int, int]
    pool: PoolSize


class CallPlacement(ABC):
    """Runs the rounds of one stream's calls, one after the other.

    What changes keys and values between two rounds (`cut` and the others below) is in force from the next
    round on, wherever they are.

    Attributes
    ----------
    elsewhere : bool
        Whether a round runs on while this process does something else between `submit` and `collect`.
    """

    elsewhere = False

    def __init__(self) -> None:
        self._shelves = 0

    # -- rounds --------------------------------------------------------------------------

    @abstractmethod
    def encode_text(self, features: Tensor) -> TextContext:
        """Condition of text features [1, l, text_dim]."""

    @abstractmethod
    def submit(self, round: Round, texts: Mapping[int, TextContext], clean: Tensor | None = None) -> None:
        """Begin a round.

        Parameters
        ----------
        round : Round
        texts : mapping of chunk to TextContext
            Prompt of each chunk in it.
        clean : Tensor [c, f, h, w], optional
            Input of a store pass that follows no denoising.
        """

    @abstractmethod
    def collect(self) -> Tensor | None:
        """Wait until the next round can be decided on; returns the latent that this one completes, if any."""

    @abstractmethod
    def drop_from(self, position: int) -> None:
        """Between two rounds: nothing that is in flight from a position on enters a further one."""

    @abstractmethod
    def close(self) -> None:
        """Give the stream up."""

    # -- keys and values -----------------------------------------------------------------

    def cut(self, position: int) -> int:
        """Take the pages of everything from a position on out; returns the shelf on which they are."""
        self._shelves += 1
        self._edit("cut", position, self._shelves)
        return self._shelves

    def restore(self, shelf: int) -> None:
        """Put back what is on a shelf, where nothing is now."""
        self._edit("restore", shelf)

    def discard(self, shelf: int) -> None:
        """Give back the pages that are on a shelf."""
        self._edit("discard", shelf)

    def drop(self, chunks: Collection[int]) -> None:
        """Forget chunks, which no round reads any more."""
        if chunks:
            self._edit("drop", *chunks)

    def keep(self, chunks: Collection[int]) -> None:
        """Forget everything but the clean keys and values of chunks, and what is in flight."""
        self.drop_from(0)
        self._edit("keep", *chunks)

    @abstractmethod
    def _edit(self, action: Action, *numbers: int) -> None:
        """Change the page table."""


@dataclass(frozen=True)
class CallPlace:
    """Where streams of calls find a place.

    Attributes
    ----------
    name : str
        "local", "shared", "replicas" or "layers".
    open : callable
        Takes a stream in.
    """

    name: str
    open: Callable[[CallStream], CallPlacement]

    @property
    def apart(self) -> bool:
        """Whether each slot of a round has a process, so that a chunk is as fast beside others as alone."""
        return self.name == "replicas"


class LocalCalls(CallPlacement):
    """Calls on one device.

    Parameters
    ----------
    placement : LocalPlacement or SharedPlacement
    stream : CallStream
    device : torch.device
        Of the latents.
    elsewhere : bool
        Have a generator take the steps that it takes where rounds run elsewhere.
    """

    def __init__(
        self,
        placement: LocalPlacement | SharedPlacement,
        stream: CallStream,
        device: torch.device | str,
        elsewhere: bool = False,
    ) -> None:
        super().__init__()
        self.elsewhere = elsewhere
        self.placement = placement
        self._steps = stream.rules.steps
        self._handoff = Handoff(stream.levels, stream.seed, stream.latent, device)
        self._edits = Edits(placement.cache.table)
        self._complete: Tensor | None = None

    def encode_text(self, features: Tensor) -> TextContext:
        """See `CallPlacement.encode_text`."""
        return self.placement.encode_text(features)

    def submit(self, round: Round, texts: Mapping[int, TextContext], clean: Tensor | None = None) -> None:
        """See `CallPlacement.submit`; the round is over when this returns."""
        handoff = self._handoff
        inputs = handoff.latents(round) if clean is None else {self._steps: clean}
        self._complete = handoff.advance(round, self.placement.run(round, inputs, handoff.levels, texts))

    def collect(self) -> Tensor | None:
        """See `CallPlacement.collect`."""
        return self._complete

    def drop_from(self, position: int) -> None:
        """See `CallPlacement.drop_from`."""
        self._handoff.drop_from(position)

    def close(self) -> None:
        """See `CallPlacement.close`."""
        self.placement.close()

    def _edit(self, action: Action, *numbers: int) -> None:
        self._edits.apply([Edit(action, numbers)], self._steps)


def local_calls(
    dit: CausalWanDiT, stream: CallStream, order: Order = "batched", elsewhere: bool = False
) -> LocalCalls:
    """Calls on the device of a model; `order` as of `LocalPlacement`, `elsewhere` as of `LocalCalls`."""
    cache = local_cache(dit, stream.pool, *stream.latent[1:])
    return LocalCalls(LocalPlacement(dit, cache, order), stream, dit.patch_embedding.weight.device, elsewhere)


def local_place(dit: CausalWanDiT) -> CallPlace:
    """The device of a model."""
    return CallPlace("local", partial(local_calls, dit))


def shared_place(device: SharedDevice) -> CallPlace:
    """A device that runs the rounds of several streams together."""

    def take_in(stream: CallStream) -> LocalCalls:
        placement = device.open(stream.rules, stream.pool, *stream.latent[1:])
        return LocalCalls(placement, stream, device.dit.patch_embedding.weight.device)

    return CallPlace("shared", take_in)


def same_place(dit: CausalWanDiT, name: str) -> CallPlace:
    """The device of a model, where the same is made, in the same steps, as in the place of that name."""
    if name == "local":
        return local_place(dit)
    slots: Order = (
        "slots"  # one by one, as in processes, which a library's matrix product may tell from a batch
    )
    elsewhere = name == "replicas"
    return CallPlace(name, partial(local_calls, dit, order=slots, elsewhere=elsewhere))
