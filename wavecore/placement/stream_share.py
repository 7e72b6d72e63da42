"""A stream whose chunks enter one by one, on one rank: its slots of every tick."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import PagePool
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.exchange import Arrival, Exchange, Job, PeerTable, RankPages
from wavecore.placement.handoff import Handoff, renoise
from wavecore.placement.share import ShareRunner, Work, share_out
from wavecore.rounds import NoiseLevel, Slot


class StreamShare:
    """One stream on one rank.

    Parameters
    ----------
    begin : protocol.Begin
    setup : protocol.Setup
    dit : CausalWanDiT
    pool : PagePool
        Of this rank.
    pages : dict of int to RankPages
        Of this rank, and of those that it sends to.
    exchange : Exchange
    send : callable
        Sends a message to the process of the session.
    """

    def __init__(
        self,
        begin: protocol.Begin,
        setup: protocol.Setup,
        dit: CausalWanDiT,
        pool: PagePool,
        pages: dict[int, RankPages],
        exchange: Exchange,
        send: Callable[[Any], None],
    ) -> None:
        channels, height, width = setup.layouts[0].shape.latent
        self._begin, self._setup, self._exchange, self._send = begin, setup, exchange, send
        self._rank, self._map = setup.rank, setup.map
        self.job = Job(begin.rules, setup.map, begin.first_tick, begin.chunks)
        grid = height // dit.config.patch[1], width // dit.config.patch[2]
        self._runner = ShareRunner(dit, pool, pages[setup.rank].table(), grid, exchange)
        self._peers = [PeerTable(self.job, rank, pages[rank]) for rank in pages if rank != setup.rank]
        self._handoff = Handoff(begin.levels, begin.seed, (channels, height, width))
        self._texts: dict[int, TextContext] = {}
        self._version: dict[int, int] = {}  # by chunk, as what follows
        self._levels: dict[int, Sequence[NoiseLevel]] = {}
        self._source: dict[int, Tensor] = {}
        self._handed: dict[int, Tensor] = {}  # estimates that stay on this rank, by the stage they go to
        self._sent_before = exchange.bytes_sent
        self.over = False  # whether this rank has done its part

    def text(self, message: protocol.Text) -> None:
        """A condition."""
        self._texts[message.version] = self._runner.text(message)

    def enter(self, message: protocol.Enter) -> None:
        """The next chunk enters in the next tick."""
        chunk = message.chunk
        self._version[chunk] = message.version
        if message.levels is not None:
            self._levels[chunk] = message.levels
        if message.source is not None:
            self._source[chunk] = torch.from_numpy(message.source)

    # -- a tick --------------------------------------------------------------------------

    def begin(self, tick: int) -> tuple[list[Work], list[Arrival]]:
        """Begin a tick; returns the slots to run, and what arrives that none of them reads."""
        self._tick = tick
        self._round = round = self.job.part(self._rank, tick)
        for peer in self._peers:
            peer.begin(tick)
        if self.over:
            return [], []
        self._runner.cache.begin(round)
        own = self.job.shares[self._rank].own(round, tick)
        arrivals = [
            self._runner.arrival(slot, self._map.rank(slot.stage, tick))
            for slot in round.slots
            if slot not in own
        ]
        parts, left = share_out(own, arrivals)
        works = [
            Work(slot, [target for peer in self._peers if (target := peer.target(slot)) is not None], part)
            for slot, part in zip(own, parts, strict=True)
        ]
        return works, left

    def run(self, work: Work, last: bool) -> None:
        """Run a slot."""
        slot, tick, began = work.slot, self._tick, time.perf_counter()
        steps = self.job.rules.steps
        levels = self._levels.get(slot.chunk, self._begin.levels)
        text = self._texts[self._version[slot.chunk]]
        x0 = self._runner.run(tick, work, last, levels, steps, lambda: self._input(slot, levels), text)
        if x0 is not None:
            self._hand_on(slot.stage + 1, x0)
            if slot.stage == steps - 1:
                self._send(protocol.Complete(self._begin.number, slot.chunk, x0.numpy()))
        if self._setup.record:
            records = self._exchange.take_records()
            index, ended = self._round.index, time.perf_counter()
            number = self._begin.number
            self._send(protocol.Round(number, slot.stage, index, slot.chunk, began, ended, records))

    def _input(self, slot: Slot, levels: Sequence[NoiseLevel]) -> Tensor:
        """What a chunk looks like as it enters a stage."""
        stage, chunk, frames = slot.stage, slot.chunk, slot.frames
        if stage == 0:
            source = self._source.pop(chunk, None)
            return self._handoff.noise(chunk, 0, frames) if source is None else source
        if stage == self.job.rules.steps:
            return self._taken(stage, frames)
        noise = self._handoff.noise(chunk, stage, frames)  # drawn before the wait
        return renoise(self._taken(stage, frames), noise, levels[stage].sigma)

    def _taken(self, stage: int, frames: int) -> Tensor:
        """What the stage before has made in the tick before."""
        source = self._map.rank(stage - 1, self._tick - 1)
        if source == self._rank:
            return self._handed.pop(stage)
        return self._exchange.latent(self._tick, stage, source, frames)

    def _hand_on(self, stage: int, x0: Tensor) -> None:
        target = self._map.rank(stage, self._tick + 1)
        if target == self._rank:
            self._handed[stage] = x0
        else:
            self._exchange.hand_on(self._tick, stage, target, x0)

    def end(self) -> None:
        """End the tick."""
        for peer in self._peers:
            peer.end()
        if self.over:
            return
        self._runner.cache.end(self._round)
        stored = self._round.index - self.job.rules.steps
        for kept in (self._version, self._levels, self._source):
            _forget(kept, range(stored + 1))
        if self._version:
            _forget(self._texts, range(min(self._version.values())))

    def settle(self) -> bool:
        """Give back what is not needed after the tick; returns whether nothing is left to do.

        Everybody does so once the end of the stream is known, before the next tick.
        """
        tick = self._tick
        for peer in [peer for peer in self._peers if self.job.over(peer.rank, tick)]:
            peer.close()
            self._peers.remove(peer)
        if not self.over and self.job.over(self._rank, tick):
            self.over = True
            self._runner.cache.close()
            self._send(protocol.Finished(self._begin.number, self._exchange.bytes_sent - self._sent_before))
        return self.over and not self._peers


def _forget(kept: dict[int, Any], numbers: Iterable[int]) -> None:
    for number in [number for number in kept if number in numbers]:
        del kept[number]
