"""Where the work of a session runs, as `Pipeline.session` and `Pipeline.restyle` let one choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Literal

from wavecore.arguments import whole
from wavecore.errors import UsageError
from wavecore.models.bundle import StreamModel
from wavecore.models.footprint import check_stream_memory, fewest_pages
from wavecore.placement.calls import CallPlace, CallPlacement, CallStream, shared_place
from wavecore.rounds import NoiseLevel, Rules, Wavefront
from wavecore.session import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavecore.models.dit import CausalWanDiT
    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.device import SharedDevice
    from wavecore.placement.layers import Ring
    from wavecore.placement.replicas import ReplicaOptions, Replicas
    from wavecore.placement.sequence import SequenceMode, SequencePlacement
    from wavecore.restyling import Restyling
    from wavecore.trace import Trace

PlacementName = Literal["local", "replicas", "layers", "sequence"]
_RANKS = 2  # where none are asked for


@contextmanager
def closed_on_error(place: Ring | SequencePlacement | None) -> Iterator[None]:
    """End the processes that were started for a stream when that does not begin."""
    try:
        yield
    except BaseException:
        if place is not None:
            place.close()
        raise


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where the rounds and the decoder of a stream run.

    Attributes
    ----------
    placement : "local", "replicas", "layers" or "sequence"
        On one device; with the denoising stages and the store pass over `devices` processes; with the layers
        over a ring of as many; or with the tokens of every slot split over as many.
    devices : int, optional
        Processes of the rounds: the ranks of "layers" and "sequence", 2 when not given; those of "replicas",
        which are as many as there are stages or cores when not given (see `ReplicaOptions.ranks`).
    split : "ulysses" or "ring", optional
        How "sequence" attends, "ulysses" when not given; of no other placement.
    replicas : Replicas or ReplicaOptions, optional
        Processes of "replicas" to share, or how to start those of one session.
    decoders : int or DecodeOptions
        Processes that decode; 0 decodes in the process of the session.
    """

    placement: PlacementName = "local"
    devices: int | None = None
    split: SequenceMode | None = None
    replicas: Replicas | ReplicaOptions | None = None
    decoders: int | DecodeOptions = 0

    def start(
        self,
        model: StreamModel,
        prompt: str,
        rules: Rules,
        levels: Sequence[NoiseLevel],
        seed: int,
        size: tuple[int, int],
        fps: float,
        num_frames: int | None = None,
        source: Iterator[NDArray[np.uint8]] | None = None,
        trace: Trace | None = None,
        restyling: Restyling | None = None,
    ) -> Session:
        """Start a stream; parameters as of `Session`.

        Raises
        ------
        UsageError
            Numbers that do not fit the placement, the model or the rounds.
        """
        self._check_placement()
        decoders = self.decode_options()
        stream = (model, prompt, rules, levels, seed, size, fps, num_frames, source, trace, restyling)
        if self.placement == "replicas":
            from wavecore.replica_session import ReplicaSession

            return ReplicaSession(*stream, self._replicas(rules.steps), decoders)
        place: Ring | SequencePlacement | None = None
        if self.placement == "layers":
            from wavecore.restyling import start_ring

            rules, place = start_ring(model, rules, self.ranks, trace)
            stream = (model, prompt, rules, *stream[3:])
        elif self.placement == "sequence":
            from wavecore.placement.sequence import SequenceOptions, SequencePlacement

            options = SequenceOptions(ranks=self.ranks, mode=self.split or "ulysses")
            place = SequencePlacement(model.dit, options)
        else:
            self.check_one()
        with closed_on_error(place):
            return Session(*stream, place=place, decoders=decoders)

    def calls(
        self, model: StreamModel, rules: Rules, trace: Trace | None = None, shared: SharedDevice | None = None
    ) -> CallPlace | None:
        """Where the rounds of calls run, under control "speculative"; None for the device of the model.

        Parameters
        ----------
        model : StreamModel
        rules : Rules
            Of a stream of chunks.
        trace : Trace, optional
            Takes the rounds of replicas.
        shared : SharedDevice, optional
            Runs the rounds together with those of other streams.

        Raises
        ------
        UsageError
            What calls cannot be run on.
        """
        if self.decoders:
            raise UsageError(
                "decoders: expected none under control speculative, where calls decode, got some"
            )
        if shared is not None and self.placement != "local":
            raise UsageError(f"shared: expected none with placement {self.placement}, got a device")
        self._check_placement()
        if self.placement == "replicas":
            from wavecore.placement.replica_calls import ReplicaCalls
            from wavecore.placement.replicas import Replicas

            options = self._replicas(rules.steps)
            if isinstance(options, Replicas):
                raise UsageError("replicas: expected options under control speculative, got running ones")
            if not isinstance(rules, Wavefront):
                raise UsageError(f"rounds: expected wavefront for replicas, got {rules.kind}")
            return CallPlace("replicas", lambda stream: ReplicaCalls(model.dit, stream, options, trace))
        if self.placement == "layers":
            return CallPlace("layers", partial(self._ring, model.dit))
        if self.placement == "sequence":
            expected = "local, replicas or layers under control speculative"
            raise UsageError(f"placement: expected {expected}, got sequence")
        self.check_one()
        return None if shared is None else shared_place(shared)

    def _ring(self, dit: CausalWanDiT, stream: CallStream) -> CallPlacement:
        from wavecore.placement.layers import Ring
        from wavecore.placement.layers.calls import RingCalls

        return RingCalls(Ring(dit, self.ranks, for_one_stream=True), stream)

    def _replicas(self, steps: int) -> Replicas | ReplicaOptions | None:
        """`replicas` with as many ranks as `devices` says."""
        from wavecore.placement.replicas import ReplicaOptions, Replicas

        if self.devices is None:
            return self.replicas
        if not 1 <= self.devices <= steps + 1:
            raise UsageError(
                f"devices: expected 1 to {steps + 1} for {steps} steps, a process a stage and one for the "
                f"store at most, got {self.devices}"
            )
        if isinstance(self.replicas, Replicas):
            if self.replicas.map.ranks != self.devices:
                raise UsageError(
                    f"devices: expected {self.replicas.map.ranks}, as replicas have, got {self.devices}"
                )
            return self.replicas
        return replace(self.replicas or ReplicaOptions(), ranks=self.devices)

    @property
    def ranks(self) -> int:
        """Processes of "layers" and "sequence"."""
        return _RANKS if self.devices is None else self.devices

    def _check_placement(self) -> None:
        """Refuse what is of another placement."""
        if self.replicas is not None and self.placement != "replicas":
            raise UsageError(f"replicas: expected none with placement {self.placement}, got some")
        if self.split is not None and self.placement != "sequence":
            raise UsageError(f"split: expected none with placement {self.placement}, got {self.split}")

    def check_memory(
        self, model: StreamModel, size: tuple[int, int], rules: Rules, num_frames: int | None = None
    ) -> None:
        """Refuse a stream that cannot fit, before its processes start and before its rounds are looked at."""
        latents = None if num_frames is None else model.latents(num_frames)
        machines = self.ranks if self.placement == "layers" else 1
        check_stream_memory(model, size, fewest_pages(rules, latents), machines)

    def check_one(self) -> None:
        """Reject other numbers of devices than the one that there is."""
        if self.devices not in (None, 1):
            raise UsageError(f"devices: expected 1 with placement local, got {self.devices}")

    def decode_options(self) -> DecodeOptions | None:
        """How `decoders` decode; None where the process of the session does."""
        if self.decoders == 0:
            return None
        from wavecore.placement.decode import DecodeOptions

        if isinstance(self.decoders, DecodeOptions):
            return self.decoders
        whole("decoders", self.decoders, 0)
        return DecodeOptions(workers=self.decoders)
