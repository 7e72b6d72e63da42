"""Where the work of a session runs, as `Pipeline.session` and `Pipeline.restyle` let one choose."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from wavecore.errors import UsageError
from wavecore.models.bundle import StreamModel
from wavecore.rounds import NoiseLevel, Rules
from wavecore.session import Session

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.replicas import ReplicaOptions, Replicas
    from wavecore.placement.sequence import SequenceMode
    from wavecore.restyling import Restyling
    from wavecore.trace import Trace

PlacementName = Literal["local", "replicas", "sequence"]


@dataclass(frozen=True, kw_only=True)
class Placing:
    """Where the rounds and the decoder of a stream run.

    Attributes
    ----------
    placement : "local", "replicas" or "sequence"
        On one device; with a process for each denoising stage and one for the store pass; or with the tokens
        of every slot split over `devices` processes.
    devices : int, optional
        Processes of the rounds: the ranks of "sequence", 2 when not given; for "replicas" it has to be what
        the steps need.
    split : "ulysses" or "ring"
        How "sequence" attends.
    replicas : Replicas or ReplicaOptions, optional
        Processes of "replicas" to share, or how to start those of one session.
    decoders : int or DecodeOptions
        Processes that decode; 0 decodes in the process of the session.
    """

    placement: PlacementName = "local"
    devices: int | None = None
    split: SequenceMode = "ulysses"
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
        if self.replicas is not None and self.placement != "replicas":
            raise UsageError(f"replicas: expected none with placement {self.placement}, got some")
        decoders = self._decoders()
        stream = (model, prompt, rules, levels, seed, size, fps, num_frames, source, trace, restyling)
        if self.placement == "replicas":
            from wavecore.replica_session import ReplicaSession

            check_devices(self.devices, rules.steps)
            return ReplicaSession(*stream, self.replicas, decoders)
        ring = None
        if self.placement == "sequence":
            from wavecore.placement.sequence import SequenceOptions, SequencePlacement

            options = SequenceOptions(ranks=2 if self.devices is None else self.devices, mode=self.split)
            ring = SequencePlacement(model.dit, options)
        elif self.devices not in (None, 1):
            raise UsageError(f"devices: expected 1 with placement local, got {self.devices}")
        return Session(*stream, ring=ring, decoders=decoders)

    def _decoders(self) -> DecodeOptions | None:
        if not isinstance(self.decoders, int):
            return self.decoders
        if self.decoders < 0:
            raise UsageError(f"decoders: expected at least 0, got {self.decoders}")
        if self.decoders == 0:
            return None
        from wavecore.placement.decode import DecodeOptions

        return DecodeOptions(workers=self.decoders)


def check_devices(devices: int | None, steps: int) -> None:
    """Refuse a number of processes that is not what a wavefront over replicas has.

    Raises
    ------
    UsageError
    """
    if devices is not None and devices != steps + 1:
        raise UsageError(
            f"devices: expected {steps + 1} for {steps} steps, a process a stage and one for the store, "
            f"got {devices}"
        )
