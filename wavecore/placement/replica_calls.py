"""Calls over replicas, as the process of the session sees them: it says every round to every rank."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor

from wavecore.cache import PoolSize
from wavecore.cache.edits import Action, Edit
from wavecore.errors import WavecoreError
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.calls import CallPlacement, CallStream
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import ReplicaOptions
from wavecore.placement.replicas import Replicas
from wavecore.rounds import Round, Wavefront
from wavecore.trace import Trace
from wavecore.transfer import upload

_TEXTS = 8  # conditions that the ranks keep
_FIRST_TICK = 1  # that of round 0, since the ranks have no other stream


class ReplicaCalls(CallPlacement):
    """Calls whose slots run on the ranks of a wavefront.

    A round is decided on when the one before it is over at its cleanest estimate, which the others follow at
    once: late enough for a prompt that came in between, early enough that no rank waits for it.

    Parameters
    ----------
    dit : CausalWanDiT
        On the CPU.
    stream : CallStream
    options : ReplicaOptions, optional
    trace : Trace, optional
        Takes the rounds of every rank.
    nursery : Nursery, optional
        Where processes come from.
    """

    elsewhere = True

    def __init__(
        self,
        dit: CausalWanDiT,
        stream: CallStream,
        options: ReplicaOptions | None = None,
        trace: Trace | None = None,
        nursery: Nursery | None = None,
    ) -> None:
        super().__init__()
        options = options or ReplicaOptions()
        rules, pool = stream.rules, stream.pool
        # Pages are late to come back, by as many rounds as may be under way.
        late = (options.generations - 1) * (rules.steps + 2) * rules.chunk_frames
        self._replicas = Replicas(
            dit,
            Wavefront(steps=rules.steps, chunk_frames=rules.chunk_frames),
            stream.latent,
            options,
            trace,
            nursery,
            PoolSize(pool.pages + late, pool.unroped_pages),
        )
        self._dit, self._steps = dit, rules.steps
        self._device = dit.patch_embedding.weight.device
        self._edits: list[Edit] = []
        self._texts: OrderedDict[int, TextContext] = OrderedDict()  # by version, that used last at the end
        self._versions = 0
        self._index = -1
        begin = protocol.BeginCalls(0, rules, tuple(stream.levels), stream.seed)
        self._replicas._tell_all(begin)

    def encode_text(self, features: Tensor) -> TextContext:
        """See `CallPlacement.encode_text`."""
        return self._dit.encode_text(features)

    def submit(self, round: Round, texts: Mapping[int, TextContext], clean: Tensor | None = None) -> None:
        """See `CallPlacement.submit`."""
        replicas = self._replicas
        replicas.check()
        self._index += 1
        versions = {chunk: self._version(text) for chunk, text in texts.items()}
        old = [version for version in list(self._texts)[:-_TEXTS] if version not in versions.values()]
        for version in old:
            del self._texts[version]
        edits, self._edits = self._edits, []
        plan = protocol.Plan(self._index, round, edits, versions, old)
        if clean is None:
            replicas._tell_all(plan)
        else:
            store = replicas.map.rank(self._steps, _FIRST_TICK + self._index)
            replicas._tell(plan, *(rank for rank in range(replicas.map.ranks) if rank != store))
            replicas._tell(replace(plan, clean=clean.cpu().numpy()), store)

    def collect(self) -> Tensor | None:
        """See `CallPlacement.collect`."""
        replicas = self._replicas
        with replicas._lock:
            while self._index not in replicas.over:
                replicas.check()
                replicas._lock.wait(1.0)
            latent = replicas.over[self._index]
            replicas.over.clear()  # with those of rounds that nobody asked for
        return None if latent is None else upload(torch.from_numpy(latent), self._device)

    def drop_from(self, position: int) -> None:
        """See `CallPlacement.drop_from`: what was handed on is taken, and dropped where no slot wants it."""

    def close(self) -> None:
        """See `CallPlacement.close`; the processes end."""
        with suppress(WavecoreError):
            self._replicas.check()
            self._replicas._tell_all(protocol.End(0))
        self._replicas.close()

    def _version(self, text: TextContext) -> int:
        """Number of a condition, which the ranks have then."""
        version = next((number for number, known in self._texts.items() if known is text), None)
        if version is None:
            version = self._versions = self._versions + 1
            self._texts[version] = text
            self._replicas._tell_all(protocol.Text.of(version, text.keys, text.values))
        self._texts.move_to_end(version)
        return version

    def _edit(self, action: Action, *numbers: int) -> None:
        self._edits.append(Edit(action, numbers))
