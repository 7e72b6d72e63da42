"""How the stages of a wavefront exchange keys and values, and what they are called."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from wavecore import __version__
from wavecore.errors import UsageError, WavecoreError
from wavecore.placement import protocol
from wavecore.placement.exchange import EXCHANGE_MODES, TRANSPORTS, ExchangeMode, Transport

# A wait polls this long before it sleeps, where every stage has a core of its own: longer than the waits of a
# wave, since being woken takes 25 us, and milliseconds where a virtual core has gone idle.
SPIN_US = 20_000.0

Launch = Literal["fork", "torchrun"]


@dataclass(frozen=True, kw_only=True)
class ReplicaOptions:
    """How stages exchange keys and values.

    Attributes
    ----------
    mode : "sync", "early" or "paged"
        See `wavecore.placement.exchange.Exchange`.
    transport : "shared" or "gloo"
        Shared memory, or messages over `torch.distributed`.
    generations : int
        Rounds that may be under way on a stage's pages at once; 1 needs fewest pages.
    timeout : float
        Seconds after which a wait for another stage is an error.
    threads : int
        Threads of each stage.
    cores : sequence of int, optional
        Cores to pin stages to, in turn. Not pinned when left out.
    launch : "fork" or "torchrun"
        Who starts the stages: this library, on this machine; or `torchrun`, on any, in which case this is
        its rank 0 and the others run `wavecore.placement.ranks.serve_rank`.
    link_bytes_per_us : float
        Model of a slow link for measurements: copies take their bytes at this rate. 0 is the memory itself.
    """

    mode: ExchangeMode = "paged"
    transport: Transport = "shared"
    generations: int = 2
    timeout: float = 60.0
    threads: int = 1
    cores: Sequence[int] | None = None
    launch: Launch = "fork"
    link_bytes_per_us: float = 0.0

    def __post_init__(self) -> None:
        for name, value, allowed in (
            ("mode", self.mode, EXCHANGE_MODES),
            ("transport", self.transport, TRANSPORTS),
            ("launch", self.launch, get_args(Launch)),
        ):
            if value not in allowed:
                raise UsageError(f"{name}: expected one of {', '.join(allowed)}, got {value!r}")
        for name in ("generations", "threads"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if not self.timeout > 0:
            raise UsageError(f"timeout: expected a number of seconds above 0, got {self.timeout}")

    def spin_us(self, stages: int) -> float:
        """How long a wait of one of so many stages polls before it sleeps, in microseconds.

        Where stages outnumber cores, a stage that polls takes the time of the one that it waits for.
        """
        cores = len(os.sched_getaffinity(0)) if self.cores is None else len(set(self.cores))
        return SPIN_US if stages <= cores else 0.0


def rank_name(stage: int, steps: int) -> str:
    """What a stage is called in errors and in the log."""
    return f"rank {stage} ({'store' if stage == steps else f'stage {stage}'})"


def check_hellos(hellos: Sequence[protocol.Hello], digest: str) -> None:
    """Refuse stages that do not run the same version with the same weights.

    Raises
    ------
    WavecoreError
        Names the rank.
    """
    steps = len(hellos) - 1
    for hello in hellos:
        name = rank_name(hello.stage, steps)
        if hello.version != __version__:
            raise WavecoreError(f"{name}: expected wavecore {__version__}, got {hello.version}")
        if hello.checksum != digest:
            raise WavecoreError(f"{name}: expected weights with checksum {digest}, got {hello.checksum}")
