"""Ranks that split the tokens of every frame among them, and what they exchange around attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from wavecore.errors import UsageError
from wavecore.models.dit_config import DiTConfig
from wavecore.models.dit_layers import RMSNorm

SequenceMode = Literal["ulysses", "ring"]
SEQUENCE_MODES: tuple[str, ...] = get_args(SequenceMode)
# Attention of queries [s, t, h, d] to a part of the keys and values: result and log-sum-exp [s, t, h].
PartialAttention = Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]


def sharded_rms_norm(x: Tensor, weight: Tensor, eps: float, group: dist.ProcessGroup | None = None) -> Tensor:
    """Root-mean-square norm over features that are spread over the ranks.

    Parameters
    ----------
    x : Tensor [..., D / p]
        This rank's features.
    weight : Tensor [D / p]
        Its part of the weight.
    eps : float
    group : ProcessGroup, optional

    Returns
    -------
    Tensor [..., D / p]
    """
    squares = x.float().square().sum(-1, keepdim=True)
    dist.all_reduce(squares, group=group)
    count = x.shape[-1] * dist.get_world_size(group)
    return (x.float() * torch.rsqrt(squares / count + eps)).to(x.dtype) * weight


def check_split(mode: str, ranks: int, config: DiTConfig, frame_tokens: int | None = None) -> None:
    """Refuse a split that cannot be.

    Raises
    ------
    UsageError
        No such mode, or ranks that do not divide the heads ("ulysses") or the tokens of a frame.
    """
    if mode not in SEQUENCE_MODES:
        raise UsageError(f"mode: expected {' or '.join(SEQUENCE_MODES)}, got {mode!r}")
    if mode == "ulysses" and config.heads % ranks:
        raise UsageError(f"devices: expected a number that divides {config.heads} heads, got {ranks}")
    if frame_tokens is not None and frame_tokens % ranks:
        raise UsageError(f"devices: expected a number that divides {frame_tokens} tokens, got {ranks}")


class TokenGroup:
    """The ranks of a process group, each with a part of every frame's tokens.

    Parameters
    ----------
    group : ProcessGroup, optional
        The default group when not given.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        self._group = group
        self.ranks, self.rank = dist.get_world_size(group), dist.get_rank(group)

    def shard(self, x: Tensor, frames: int) -> Tensor:
        """This rank's tokens of every frame: [b, f * n, ...] to [b, f * n / p, ...]."""
        return x.unflatten(1, (frames, -1)).chunk(self.ranks, 2)[self.rank].flatten(1, 2)

    def gather(self, x: Tensor, frames: int) -> Tensor:
        """The inverse, on every rank."""
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.ranks)]
        dist.all_gather(parts, x.contiguous(), group=self._group)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in parts], 2).flatten(1, 2)

    def tokens_for_heads(self, x: Tensor, frames: int) -> Tensor:
        """[b, f * n / p, h, d] to [b, f * n, h / p, d]."""
        sent = [part.contiguous() for part in x.chunk(self.ranks, 2)]
        came = self._all_to_all(sent)
        return torch.cat([part.unflatten(1, (frames, -1)) for part in came], 2).flatten(1, 2)

    def heads_for_tokens(self, x: Tensor, frames: int) -> Tensor:
        """[b, f * n, h / p, d] to [b, f * n / p, h, d]."""
        parts = x.unflatten(1, (frames, -1)).chunk(self.ranks, 2)
        return torch.cat(self._all_to_all([part.flatten(1, 2).contiguous() for part in parts]), 2)

    def norm(self, x: Tensor, norm: RMSNorm) -> Tensor:
        """Norm over all heads of [b, t, h / p, d], this rank's heads."""
        weight = norm.weight.chunk(self.ranks)[self.rank]
        return sharded_rms_norm(x.flatten(-2), weight, norm.eps, self._group).reshape(x.shape)

    def around(self, q: Tensor, k: Tensor, v: Tensor, attend: PartialAttention) -> Tensor:
        """Attention to the keys and values of all ranks, which go around the ring.

        Each part's result counts by its log-sum-exp.
        """
        out: Tensor | None = None
        lse: Tensor | None = None
        for step in range(self.ranks):
            works: list[Any] = []
            arriving = None
            if step < self.ranks - 1:
                both = torch.stack([k, v])
                arriving = torch.empty_like(both)
                after, before = (self.rank + 1) % self.ranks, (self.rank - 1) % self.ranks
                works = [
                    dist.isend(both, group=self._group, group_dst=after),
                    dist.irecv(arriving, group=self._group, group_src=before),
                ]
            part, part_lse = attend(q, k, v)
            if out is None or lse is None:
                out, lse = part.float(), part_lse
            else:
                joined = torch.logaddexp(lse, part_lse)
                out = out * (lse - joined).exp()[..., None] + part * (part_lse - joined).exp()[..., None]
                lse = joined
            for work in works:
                work.wait()
            if arriving is not None:
                k, v = arriving.unbind(0)
        assert out is not None
        return out.to(q.dtype)

    def _all_to_all(self, sent: list[Tensor]) -> list[Tensor]:
        # Pair by pair: the gloo backend has no exchange of all with all.
        came = [torch.empty_like(part) for part in sent]
        came[self.rank] = sent[self.rank]
        works: list[Any] = []
        for other in (r for r in range(self.ranks) if r != self.rank):
            works.append(dist.isend(sent[other], group=self._group, group_dst=other))
            works.append(dist.irecv(came[other], group=self._group, group_src=other))
        for work in works:
            work.wait()
        return came
