"""One stage of a wave at work on the rounds of calls, which it is told one by one.

Every stage gets every round, with the changes of the page table that precede it, and goes through them in
order. So all tables are the same, a cut is in force from the same round on everywhere, and no counter of the
exchange says anything about validity: what is sent in a round is taken in it, and dropped where nothing reads
it. A stage without a slot in a round takes what later ones need, and says how far it has read as ever.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import FreePages, PagePool, PoolSize
from wavecore.cache.edits import Edits
from wavecore.models.dit import CausalWanDiT, TextContext
from wavecore.placement import protocol
from wavecore.placement.exchange import Exchange, PagesOf, PagesThere
from wavecore.placement.handoff import Handoff, renoise
from wavecore.placement.stage import StageRunner
from wavecore.rounds import CallRules, Round, Slot


class LatePages(FreePages):
    """A free list whose pages are taken anew only when nothing reads or copies them any more.

    Parameters
    ----------
    name, capacity
        As of `FreePages`.
    generations : int
        Pages that were given back after a round can be taken this many rounds later.
    """

    def __init__(self, name: str, capacity: int, generations: int) -> None:
        super().__init__(name, capacity)
        self._generations = generations
        self._late: deque[list[int]] = deque([[]])

    def free(self, pages: Iterable[int]) -> None:
        """Give pages back; see `FreePages.free`."""
        self._late[-1] += pages

    def turn(self) -> None:
        """A round begins."""
        self._late.append([])
        while len(self._late) > self._generations:
            super().free(self._late.popleft())


class CallJob:
    """A stream of calls, as the exchange of a stage has to know it.

    Parameters
    ----------
    rules : CallRules
    first_tick : int
        Number of its round 0 among the rounds of all streams.
    """

    def __init__(self, rules: CallRules, first_tick: int) -> None:
        self.first_tick = first_tick
        self._steps = rules.steps
        self._stages: frozenset[int] = frozenset()

    def begin(self, round: Round) -> None:
        """Go on to the next round."""
        self._stages = frozenset(slot.stage for slot in round.slots)

    def at_work(self, stage: int, tick: int) -> bool:
        """See `Stream.at_work`: every stage goes through every round."""
        return tick >= self.first_tick

    def own(self, stage: int, round: Round) -> Slot | None:
        """See `Stream.own`."""
        return next((slot for slot in round.slots if slot.stage == stage), None)

    def takes(self, reader: int, writer: int, tick: int) -> bool:
        """See `Stream.takes`: clean keys and values every stage, others one with a chunk behind them."""
        return (
            writer in self._stages and writer > reader and (writer == self._steps or reader in self._stages)
        )

    def sent(self, stage: int, round: Round) -> Round:
        """The round with those of its slots that a stage writes or is sent."""
        slots = (slot for slot in round.slots if slot.stage == stage or self.takes(stage, slot.stage, 0))
        return replace(round, slots=tuple(slots))

    def pages_there(self, reader: int, size: PoolSize, pages_of: PagesOf) -> PagesThere:
        """See `Stream.pages_there`: where it is here, since all tables are the same."""
        return lambda index, own: (own, *pages_of(own))


class CallStage:
    """A stream of calls on one stage.

    Parameters
    ----------
    begin : protocol.BeginCalls
    dit : CausalWanDiT
    setup : protocol.Setup
    exchange : Exchange
    pool : PagePool
        Of this stage alone.
    receive, send : callable
        Take the next message from the process of the session; send it one.
    """

    def __init__(
        self,
        begin: protocol.BeginCalls,
        dit: CausalWanDiT,
        setup: protocol.Setup,
        exchange: Exchange,
        pool: PagePool,
        receive: Callable[[], Any],
        send: Callable[[Any], None],
    ) -> None:
        shape = setup.layouts[setup.stage].shape
        channels, height, width = shape.latent
        self._begin, self._stage, self._record = begin, setup.stage, setup.record
        self._exchange, self._receive, self._send = exchange, receive, send
        size = setup.layouts[setup.stage].pool
        self._late = [
            LatePages("pages", size.pages, setup.generations),
            LatePages("un-roped pages", size.unroped_pages, setup.generations),
        ]
        pool.free_list, pool.unroped_free_list = self._late
        grid = height // dit.config.patch[1], width // dit.config.patch[2]
        self._job = CallJob(begin.rules, begin.first_tick)
        self._runner = StageRunner(dit, self._job, setup.stage, pool, grid, exchange)
        self._edits = Edits(self._runner.cache.table)
        exchange.start(self._job, pool, self._runner.pages_of)
        self._handoff = Handoff(begin.levels, begin.seed, (channels, height, width))
        self._texts: dict[int, TextContext] = {}
        self._before: Round | None = None  # the round before

    def run(self) -> None:
        """Go through rounds until there are no more."""
        sent_before = self._exchange.bytes_sent
        while True:
            match self._receive():
                case protocol.Text(version, keys, values):
                    self._texts[version] = TextContext(keys, values)
                case protocol.Plan() as plan:
                    began = time.perf_counter()
                    self._round(plan)
                    self._log(plan, began)
                case protocol.End():
                    break
        self._runner.close()
        self._send(protocol.Finished(self._begin.number, self._exchange.bytes_sent - sent_before))

    def _round(self, plan: protocol.Plan) -> None:
        stage, steps, round = self._stage, self._begin.rules.steps, plan.round
        tick = self._job.first_tick + plan.index
        self._job.begin(round)
        self._edits.apply(plan.edits, steps)
        for pages in self._late:
            pages.turn()
        self._runner.prepare(plan.index, round, self._begin.levels, self._job.sent(stage, round))
        slot, x0 = self._job.own(stage, round), None
        if slot is None:
            self._taken(tick)
            self._runner.listen()
        else:
            x0 = self._runner.run(self._input(slot, tick, plan), self._texts[plan.texts[slot.chunk]])
            if x0 is not None:
                self._exchange.hand_on(tick, x0)
        self._before = round
        for version in plan.old_texts:
            del self._texts[version]
        if stage == reporter(round):
            completes = x0 is not None and stage == steps - 1
            self._send(protocol.Over(plan.index, x0.numpy() if completes and x0 is not None else None))

    def _taken(self, tick: int) -> Tensor | None:
        """What the stage before has handed on, if anything; it may be of a chunk that was cut off since."""
        handed = None if self._before is None else self._job.own(self._stage - 1, self._before)
        if handed is None:
            self._exchange.no_latent(tick)
            return None
        return self._exchange.latent(tick, handed.frames)

    def _input(self, slot: Slot, tick: int, plan: protocol.Plan) -> Tensor:
        """What the slot of this stage starts from."""
        stage = slot.stage
        if stage == self._begin.rules.steps:
            latent = self._taken(tick)
            clean = latent if plan.clean is None else torch.from_numpy(plan.clean)
            assert clean is not None
            return clean
        noise = self._handoff.noise(slot.chunk, stage, slot.frames)  # drawn before the wait
        latent = self._taken(tick)
        return noise if latent is None else renoise(latent, noise, self._begin.levels[stage].sigma)

    def _log(self, plan: protocol.Plan, began: float) -> None:
        if not self._record:
            return
        records = self._exchange.take_records()
        slot = self._job.own(self._stage, plan.round)
        if slot is not None:
            number, ended = self._begin.number, time.perf_counter()
            self._send(protocol.Round(number, self._stage, plan.index, slot.chunk, began, ended, records))


def reporter(round: Round) -> int:
    """The stage that says when a round is so far over that the next one is wanted: its cleanest estimate."""
    return max((slot.stage for slot in round.slots if slot.stage < round.steps), default=round.steps)
