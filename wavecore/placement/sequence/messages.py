"""What the process of a session and its sequence-parallel ranks tell each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.placement.sequence.group import SequenceMode
from wavecore.rounds import Key, NoiseLevel, Round


@dataclass(frozen=True)
class Join:
    """To a rank, first of all: its group. Rank 0 replies with the port of the group's store."""

    rank: int
    ranks: int
    mode: SequenceMode
    port: int
    timeout: float
    threads: int
    core: int | None
    pages: PoolSize
    height: int
    width: int


@dataclass(frozen=True)
class Run:
    """To a rank: the next round. Conditions are numbered, and come with their first use."""

    round: Round
    latents: Mapping[int, Tensor]
    levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel]
    text: Mapping[int, int]
    new_text: Mapping[int, tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]


@dataclass(frozen=True)
class Drop:
    """To a rank: keys to forget."""

    keys: Sequence[Key]


@dataclass(frozen=True)
class Estimates:
    """From rank 0: what came of a round."""

    latents: Mapping[int, Tensor]
