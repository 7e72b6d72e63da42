"""How the ranks of a wavefront share its stages, and how they exchange keys and values."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from wavecore import __version__
from wavecore.arguments import choice, positive, whole
from wavecore.errors import UsageError, WavecoreError
from wavecore.placement import protocol
from wavecore.placement.exchange import EXCHANGE_MODES, TRANSPORTS, ExchangeMode, Transport
from wavecore.rounds import StageMap

# A wait polls this long before it sleeps, where every rank has a core of its own: longer than the waits of a
# wave, since being woken takes 25 us, and milliseconds where a virtual core has gone idle.
SPIN_US = 20_000.0

Launch = Literal["fork", "torchrun"]


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """How ranks share the stages, and how they exchange keys and values.

    Attributes
    ----------
    ranks : int or sequence of sequences of int, optional
        Processes, each a full model: how many, which take the stages in turn where there are fewer of them
        than stages; or the stages of each, as `wavecore.plan.Plan.ranks` has them. When left out: one for
        each stage where there are as many cores, else one a core; under `torchrun` as many as it has started.
    mode : "sync", "early" or "paged"
        See `wavecore.placement.exchange.Exchange`.
    transport : "shared" or "gloo"
        Shared memory, or messages over `torch.distributed`.
    generations : int
        Rounds that may be under way on a rank's pages at once; 1 needs fewest pages.
    timeout : float
        Seconds after which a wait for another rank is an error.
    threads : int
        Threads of each rank.
    cores : sequence of int, optional
        Cores to pin ranks to, in turn. Not pinned when left out.
    launch : "fork" or "torchrun"
        Who starts the ranks: this library, on this machine; or `torchrun`, on any, in which case this is
        its rank 0 and the others run `wavecore.placement.ranks.serve_rank`.
    devices : sequence of str, optional
        Where ranks compute, in turn, such as ("cuda:0", "cuda:1"); each holds a full model. Pages are shared
        between devices of one machine then, in mode "paged". When left out: the CPU, or for a model on a GPU
        all GPUs of the machine.
    link_bytes_per_us : float
        Model of a slow link for measurements: copies take their bytes at this rate. 0 is the memory itself.
    """

    ranks: int | Sequence[Sequence[int]] | None = None
    mode: ExchangeMode = "paged"
    transport: Transport = "shared"
    generations: int = 2
    timeout: float = 60.0
    threads: int = 1
    cores: Sequence[int] | None = None
    launch: Launch = "fork"
    devices: Sequence[str] | None = None
    link_bytes_per_us: float = 0.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, EXCHANGE_MODES),
            ("transport", self.transport, TRANSPORTS),
            ("launch", self.launch, get_args(Launch)),
        ):
            choice(name, value, allowed)
        for name in ("generations", "threads"):
            whole(name, getattr(self, name), 1)
        positive("timeout", self.timeout)

    @property
    def _cores(self) -> int:
        """Cores that the ranks have."""
        return len(os.sched_getaffinity(0)) if self.cores is None else len(set(self.cores))

    def devices_for(self, device: torch.device) -> Sequence[str] | None:
        """Devices of the ranks of a model on `device`; None where they compute in the memory of the host.

        Raises
        ------
        UsageError
            Devices that cannot exchange pages so.
        """
        devices = self.devices
        if devices is None and device.type == "cpu":
            return None
        if devices is None:
            devices = [f"cuda:{index}" for index in range(torch.cuda.device_count())]
        for name, value, expected in (
            ("mode", self.mode, "paged"),
            ("transport", self.transport, "shared"),
            ("launch", self.launch, "fork"),
        ):
            if value != expected:
                raise UsageError(f"{name}: expected {expected} for replicas on devices, got {value}")
        if not devices:
            raise UsageError("devices: expected at least one, got none")
        for name in devices:
            try:
                torch.empty(0, device=name)
            except (RuntimeError, AssertionError) as error:  # PyTorch without CUDA asserts
                reason = str(error).splitlines()[0]
                raise UsageError(f"devices: expected ones that work here, got {name}: {reason}") from None
        return devices

    def stage_map(self, stages: int, devices: Sequence[str] | None = None) -> StageMap:
        """Which rank computes which of so many stages, the store among them; a rank a device at most.

        Raises
        ------
        UsageError
            Ranks that cannot share the stages.
        """
        if self.ranks is not None and not isinstance(self.ranks, int):
            return StageMap.of_groups(self.ranks, stages)
        if self.ranks is not None:
            return StageMap(stages, self.ranks)
        if self.launch == "torchrun":
            return StageMap(stages, min(stages, int(os.environ.get("WORLD_SIZE", "1"))))
        return StageMap(stages, min(stages, self._cores if devices is None else len(devices)))

    def spin_us(self, ranks: int) -> float:
        """How long a wait of one of so many ranks polls before it sleeps, in microseconds.

        Where ranks outnumber cores, one that polls takes the time of the one that it waits for.
        """
        return SPIN_US if ranks <= self._cores else 0.0


def check_hellos(hellos: Sequence[protocol.Hello], map: StageMap, digest: str) -> None:
    """Refuse ranks that do not run the same version with the same weights.

    Raises
    ------
    WavecoreError
        Names the rank.
    """
    for hello in hellos:
        name = map.name(hello.rank)
        if hello.version != __version__:
            raise WavecoreError(f"{name}: expected wavecore {__version__}, got {hello.version}")
        if hello.checksum != digest:
            raise WavecoreError(f"{name}: expected weights with checksum {digest}, got {hello.checksum}")
