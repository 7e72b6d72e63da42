"""What one rank computes of the rounds of calls, which it is told one by one.

Every rank gets every round, with the changes of the page table that precede it, and goes through them in
order. So all tables are the same, a cut is in force from the same round on everywhere, and no counter of the
exchange says anything about validity: what is sent in a round is taken in it, and dropped where nothing reads
it. A rank without a slot in a round takes what later ones need, and says how far it has read as ever.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import PagePool
from wavecore.cache.edits import Edits
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.exchange import Arrival, Exchange, RankPages, Target
from wavecore.placement.handoff import Handoff, renoise
from wavecore.placement.share import ShareRunner, Work, listen, share_out
from wavecore.rounds import Round, Slot


class CallShare:
    """A stream of calls on one rank.

    Parameters
    ----------
    begin : protocol.BeginCalls
    setup : protocol.Setup
    dit : CausalWanDiT
    pool : PagePool
        Of this rank.
    pages : RankPages
        The same.
    exchange : Exchange
    send : callable
        Sends a message to the process of the session.
    """

    def __init__(
        self,
        begin: protocol.BeginCalls,
        setup: protocol.Setup,
        dit: CausalWanDiT,
        pool: PagePool,
        pages: RankPages,
        exchange: Exchange,
        send: Callable[[Any], None],
    ) -> None:
        channels, height, width = setup.layouts[0].shape.latent
        self._begin, self._setup, self._exchange, self._send = begin, setup, exchange, send
        self._rank, self._map, self._steps = setup.rank, setup.map, begin.rules.steps
        self._layers = dit.config.layers
        grid = height // dit.config.patch[1], width // dit.config.patch[2]
        self._pages = pages
        self._runner = ShareRunner(dit, pool, pages.table(), grid, exchange)
        self._edits = Edits(self._runner.cache.table)
        self._handoff = Handoff(begin.levels, begin.seed, (channels, height, width))
        self._texts: dict[int, TextContext] = {}
        self._handed: dict[int, Tensor] = {}  # estimates that stay on this rank, by the stage they go to
        self._before: Round | None = None  # the round before
        self._sent_before = exchange.bytes_sent

    def text(self, message: protocol.Text) -> None:
        """A condition."""
        self._texts[message.version] = self._runner.text(message)

    def round(self, plan: protocol.Plan, tick: int) -> None:
        """Go through a round."""
        round = plan.round
        self._edits.apply(plan.edits, self._steps)
        self._pages.turn()
        self._runner.cache.begin(round)
        own = [slot for slot in round.slots if self._map.rank(slot.stage, tick) == self._rank]
        arrivals = [
            self._runner.arrival(slot, rank)
            for slot in round.slots
            if (rank := self._map.rank(slot.stage, tick)) != self._rank
            and self._takes(self._rank, slot, round, tick)
        ]
        self._exchange.expect(tick, arrivals)
        unread = self._run(plan, tick, own, arrivals)
        if not own:
            self._take_unwanted(tick, set())
            listen(self._exchange, self._layers, tick, unread)
            if self._setup.record:
                self._exchange.take_records()  # nobody asks for those of a round without a slot
        self._runner.cache.end(round)
        self._before = round
        for version in plan.old_texts:
            del self._texts[version]

    def _run(self, plan: protocol.Plan, tick: int, own: list[Slot], arrivals: list[Arrival]) -> list[Arrival]:
        """Run the slots of this rank; returns what arrives in a round without any."""
        parts, left = share_out(own, arrivals)
        if not own:
            return left
        parts[-1] += left
        self._take_unwanted(tick, {slot.stage for slot in own})
        for slot, part in zip(own, parts, strict=True):
            began = time.perf_counter()
            work = Work(slot, self._targets(slot, plan.round, tick), part)
            self._slot(plan, tick, work, slot is own[-1])
            if self._setup.record:
                records, ended = self._exchange.take_records(), time.perf_counter()
                number = self._begin.number
                self._send(protocol.Round(number, slot.stage, plan.index, slot.chunk, began, ended, records))
        return []

    def _slot(self, plan: protocol.Plan, tick: int, work: Work, last: bool) -> None:
        slot, steps = work.slot, self._steps
        text = self._texts[plan.texts[slot.chunk]]
        x0 = self._runner.run(
            tick, work, last, self._begin.levels, steps, lambda: self._input(slot, tick, plan), text
        )
        if x0 is not None:
            target = self._map.rank(slot.stage + 1, tick + 1)
            if target == self._rank:
                self._handed[slot.stage + 1] = x0
            else:
                self._exchange.hand_on(tick, slot.stage + 1, target, x0)
        if slot.stage == reporter(plan.round):
            completes = x0 is not None and slot.stage == steps - 1
            self._send(protocol.Over(plan.index, x0.numpy() if completes and x0 is not None else None))

    # -- keys and values -----------------------------------------------------------------

    def _takes(self, rank: int, slot: Slot, round: Round, tick: int) -> bool:
        """Whether a rank is sent a slot: a clean one in any case, others where a chunk behind it reads it."""
        if slot.stage == self._steps:
            return self._map.sends(self._map.rank(slot.stage, tick), rank)
        stages = [other.stage for other in round.slots if self._map.rank(other.stage, tick) == rank]
        return any(stage < slot.stage for stage in stages)

    def _targets(self, slot: Slot, round: Round, tick: int) -> list[Target]:
        """Where a slot goes: to the same pages as here, since all tables are the same."""
        table = self._runner.cache.table
        targets = []
        for rank in range(self._map.ranks):
            if rank == self._rank or not self._takes(rank, slot, round, tick):
                continue
            stages = [s.stage for s in round.slots if self._map.rank(s.stage, tick) == rank]
            reader = max((stage for stage in stages if stage < slot.stage), default=slot.stage)
            targets.append(Target(rank, reader, table.write_ids(slot), table.unroped_ids(slot)))
        return targets

    # -- latents -------------------------------------------------------------------------

    def _input(self, slot: Slot, tick: int, plan: protocol.Plan) -> Tensor:
        """What a slot of this rank starts from."""
        stage = slot.stage
        if stage == self._steps:
            latent = self._taken(stage, tick)
            clean = latent if plan.clean is None else torch.from_numpy(plan.clean)
            assert clean is not None
            return clean
        noise = self._handoff.noise(slot.chunk, stage, slot.frames)  # drawn before the wait
        latent = self._taken(stage, tick)
        return noise if latent is None else renoise(latent, noise, self._begin.levels[stage].sigma)

    def _taken(self, stage: int, tick: int) -> Tensor | None:
        """What the stage before has handed on, if anything; it may be of a chunk that was cut off since."""
        before = () if self._before is None else self._before.slots
        handed = next((slot for slot in before if slot.stage == stage - 1), None)
        if handed is None:
            return None
        source = self._map.rank(stage - 1, tick - 1)
        if source == self._rank:
            return self._handed.pop(stage)
        return self._exchange.latent(tick, stage, source, handed.frames)

    def _take_unwanted(self, tick: int, stages: set[int]) -> None:
        """Take what was handed on for stages of this rank that have no slot."""
        for stage in range(1, self._steps + 1):
            if self._map.rank(stage, tick) == self._rank and stage not in stages:
                self._taken(stage, tick)

    def close(self) -> None:
        """The stream is over."""
        self._runner.cache.close()
        self._send(protocol.Finished(self._begin.number, self._exchange.bytes_sent - self._sent_before))


def reporter(round: Round) -> int:
    """The stage that says when a round is so far over that the next one is wanted: its cleanest estimate."""
    return max((slot.stage for slot in round.slots if slot.stage < round.steps), default=round.steps)
