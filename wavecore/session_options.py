"""Options of a session, for type checkers: `Pipeline.session` returns another type by what `control` is."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

if TYPE_CHECKING:
    from wavecore.interactive.speculation import Speculation
    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.device import SharedDevice
    from wavecore.placement.replicas import ReplicaOptions, Replicas
    from wavecore.placement.sequence import SequenceMode
    from wavecore.placing import PlacementName
    from wavecore.rounds import RoundsKind
    from wavecore.trace import Trace


class SessionOptions(TypedDict, total=False):
    """Arguments of `Pipeline.session` besides `prompt` and `control`; see there."""

    seed: int
    steps: int
    num_frames: int | None
    seconds: float | None
    size: tuple[int, int] | None
    fps: float | None
    rounds: RoundsKind | None
    placement: PlacementName
    devices: int | None
    split: SequenceMode | None
    decoders: int | DecodeOptions
    speculation: Speculation | None
    trace: Trace | None
    replicas: Replicas | ReplicaOptions | None
    shared: SharedDevice | None
