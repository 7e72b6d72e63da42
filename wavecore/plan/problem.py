"""What a planner works on: a model, a size, a device and rounds; and what it gives: plans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavecore.errors import UsageError
from wavecore.placement.exchange import pool_sizes
from wavecore.plan.costs import DECODER_UNITS, Device, Model, decode_seconds, forward_cost
from wavecore.plan.simulate import Exchange, Result
from wavecore.rounds import Sequential, StageMap, StreamBatch, Wavefront

_SLICES = 400  # of the decoder, while the times of its units are not known: cuts then fall anywhere
_RING_READS = 7  # chunks that a row of the published stream batch reads


@dataclass(frozen=True)
class Assignment:
    """What one device, or a few that split a stage's work among them, does in a round.

    Attributes
    ----------
    stages : tuple of int
        Stages it runs; the number of denoising stages stands for the store.
    decode : float
        Share of the decoder's time.
    devices : int
        How many share it.
    busy : float
        Seconds a round.
    bytes : float
        Memory of each of its devices.
    """

    stages: tuple[int, ...]
    decode: float
    devices: int
    busy: float
    bytes: float


@dataclass(frozen=True)
class Plan:
    """A placement and what it will do.

    Attributes
    ----------
    name : str
        "wave 4+1+3": denoising stages, store, decoders; with what was mixed.
    assignments : tuple of Assignment
    tick : float
        Seconds from chunk to chunk when denoising alone is looked at.
    rounds : str
        Kind of rounds, for which a model is trained.
    period : float
        The same with decoding.
    fps : float
        Frames a second.
    first_frame : float
        Seconds to the first frame.
    exposed : dict of (writer, reader) to float
        Exposed wait of each edge in a round, in seconds.
    result : Result or None
        The rounds in virtual time.
    map : StageMap or None
        Which device computes which stage, of a wavefront.
    """

    name: str
    rounds: str
    assignments: tuple[Assignment, ...]
    tick: float
    period: float
    fps: float
    first_frame: float
    exposed: dict[tuple[int, int], float]
    result: Result | None = None
    map: StageMap | None = None

    @property
    def ranks(self) -> int | tuple[tuple[int, ...], ...]:
        """Which stages run where, as `wavecore.placement.replicas.ReplicaOptions.ranks` takes it."""
        if self.map is None or any(done.devices > 1 for done in self.assignments if done.stages):
            raise UsageError(f"plan: expected a wavefront whose stages each have one device, got {self.name}")
        return self.map.groups or self.map.ranks

    @property
    def devices(self) -> int:
        """Devices in use."""
        return sum(assignment.devices for assignment in self.assignments)


class Problem:
    """Everything about model, size and device that the search asks for."""

    def __init__(
        self,
        model: Model,
        device: Device,
        rules: Wavefront,
        size: tuple[int, int],
        units: Sequence[float] | None,
        sequential: Sequential | None = None,
        stream_batch: StreamBatch | None = None,
    ) -> None:
        self.model, self.device, self.rules, self.size = model, device, rules, size
        self.tokens = model.tokens(size)
        self.cost = forward_cost(model, device, size)
        self.decode = decode_seconds(model, device, size)
        total = sum(units) if units else 1.0
        self.units = [unit / total for unit in units] if units else [1 / _SLICES] * _SLICES
        self.most_decoders = len(units) if units else DECODER_UNITS
        self.transfer = model.edge_bytes(self.tokens) / device.link
        self.exchange = Exchange(transfer=self.transfer, latency=device.latency)
        steps = rules.steps
        serial = sequential or Sequential(steps=steps)
        self.serial_reads = len(serial.round(20 * (steps + 1)).slots[0].reads)
        self.ring_reads = _RING_READS
        if stream_batch is not None:
            self.ring_reads = max(len(slot.reads) for slot in stream_batch.round(20 * steps).slots)
        full = rules.round(rules.settled() + 2)
        self.width = {slot.stage: len(slot.reads) for slot in full.slots}

    def stage_seconds(self, stage: int, degree: int = 1) -> float:
        """A forward pass of a stage split over `degree` devices by heads (Ulysses), its messages included."""
        seconds = self.cost.seconds(self.width[stage]) / degree
        return seconds + self.split_seconds(degree)

    def split_seconds(self, degree: int) -> float:
        """Messages of a pass split by heads: q, k, v, the result, all to all, and the sums of squares."""
        if degree == 1:
            return 0.0
        moved = 2 * self.model.edge_bytes(self.tokens) * (degree - 1) / degree**2
        return self.model.dit.layers * (moved / self.device.link + 3 * self.device.latency)

    def page_bytes(self, map: StageMap) -> list[float]:
        """Pages of each rank."""
        chunk = self.model.page_bytes(self.tokens) / self.rules.chunk_frames
        return [size.pages * chunk for size in pool_sizes(self.rules, map, self.exchange.generations)]

    @property
    def weights(self) -> float:
        """Bytes of the transformer."""
        return self.model.parameters * self.model.element_bytes

    @property
    def frames(self) -> int:
        """Frames that a chunk becomes."""
        return self.model.chunk_frames * self.model.temporal
