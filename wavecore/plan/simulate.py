"""The stages of a wavefront in virtual time, layer by layer.

For stage s, layer L of a round: its keys and values are published at P = F(L - 1) + qkv, are readable
elsewhere at R = P + tau, its attention starts at A = max(own P, every R it reads), and the layer ends at
F = A + attention + rest. An edge is hidden where tau <= Delta, the time from P at the writer to the reader's
own P; the exposed wait of a layer is max(0, max R - own P). Which edges there are is what the rounds say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Literal

from wavecore.errors import UsageError
from wavecore.rounds import Round, Rules, Slot

Mode = Literal["sync", "early", "paged"]
_SLACK = 1e-9  # seconds: two times that are equal but for rounding


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """How stages exchange keys, values and latents. Times in seconds.

    Attributes
    ----------
    mode : "sync", "early" or "paged"
        One exchange of everybody a layer, which attention waits for; published early into a buffer; published
        early into the pages that are read.
    transfer : float
        One edge in one layer, tau.
    latency : float
        What an exchange of everybody takes besides its transfers.
    unpack : float
        From the buffer to the pages, one edge in one layer, for "early".
    barrier : bool
        Whether everybody hands latents over together after each round, instead of stage by stage.
    generations : int
        Rounds that may be under way on the pages of a stage.
    """

    transfer: float
    mode: Mode = "paged"
    latency: float = 0.0
    unpack: float = 0.0
    barrier: bool = False
    generations: int = 2


@dataclass(frozen=True)
class Cost:
    """A forward pass in seconds: layers, and of each what comes before publication, attention, the rest."""

    layers: int
    project: float
    attend: float
    rest: float

    @property
    def total(self) -> float:
        """All layers, nothing waited for."""
        return self.layers * (self.project + self.attend + self.rest)


@dataclass(frozen=True)
class Span:
    """A stage at work on a round, for pictures."""

    track: str
    label: str
    begin: float
    end: float
    waits: tuple[tuple[float, float], ...] = ()


@dataclass
class Result:
    """What came of it.

    Attributes
    ----------
    finish : dict of (round, stage) to float
        When a stage was through with a round.
    exposed : dict of (writer, reader) to float
        Wait on an edge in the round looked at (the last of full width), all layers together.
    exposed_layers : tuple of int
        Layers of that round in which each denoising stage waited.
    tick : float
        Median time from one completed chunk to the next among rounds of full width.
    first : float
        When the first chunk was complete.
    """

    finish: dict[tuple[int, int], float] = field(default_factory=dict)
    exposed: dict[tuple[int, int], float] = field(default_factory=dict)
    exposed_layers: tuple[int, ...] = ()
    tick: float = 0.0
    first: float = 0.0
    spans: list[Span] = field(default_factory=list)


class _Running:
    """Times of one stage that later rounds refer to."""

    def __init__(self, layers: int) -> None:
        self.published = [0.0] * layers
        self.attended: dict[int, list[float]] = {}
        self.copied: dict[int, list[float]] = {}


def simulate(
    rules: Rules,
    cost: Callable[[int, int], Cost],
    exchange: Exchange,
    chunks: int | None = None,
    share: Callable[[int, int], int] = lambda stage, index: stage,
) -> Result:
    """Run a wavefront in virtual time.

    Parameters
    ----------
    rules : Wavefront
    cost : callable (stage, chunks read) -> Cost
        Chunks read include its own.
    exchange : Exchange
    chunks : int, optional
        Length of the stream; long enough for some rounds of full width when not given.
    share : callable (stage, round) -> int
        Device of a stage in a round; stages of one device take turns, cleanest first.

    Raises
    ------
    UsageError
        A stream so short that it has no two rounds of full width.
    """
    chunks = rules.settled() + 5 if chunks is None else chunks
    run = _Run(rules, cost, exchange, chunks, share)
    for index in range(rules.count(chunks)):
        run.round(index)
    return run.result()


class _Run:
    def __init__(
        self,
        rules: Rules,
        cost: Callable[[int, int], Cost],
        exchange: Exchange,
        chunks: int,
        share: Callable[[int, int], int],
    ) -> None:
        self.rules, self.cost, self.exchange, self.chunks = rules, cost, exchange, chunks
        self.share = share
        self.layers = cost(0, 1).layers
        self.running = [_Running(self.layers) for _ in range(rules.steps + 1)]
        self.over = Result()
        self.free: dict[int, float] = {}  # when a device has nothing to do
        # From here on every stage, the store too, reads as much as it ever will.
        self.full = range(rules.settled(), chunks)
        if len(self.full) < 2:
            raise UsageError(f"chunks: expected a stream with two rounds of full width, got {chunks} chunks")
        self.looked_at = self.full[-1]
        self.layers_exposed = [0] * rules.steps

    def round(self, index: int) -> None:
        """One round, every stage of it, those first that others read."""
        reads = _reads(self.rules.round(index, self.chunks))
        starts = {stage: self._start(stage, index) for stage in reads}
        if self.exchange.mode == "sync":
            self._in_step(index, reads, starts)
            return
        for stage, (width, sources) in reads.items():
            self._apart(index, stage, width, sources, starts[stage])

    def _start(self, stage: int, index: int) -> float:
        finish = self.over.finish
        if self.exchange.barrier:
            return max((end for (i, _), end in finish.items() if i == index - 1), default=0.0)
        before = finish.get((index - 1, stage - 1), 0.0) if stage else 0.0
        return max(before, finish.get((index - 1, stage), 0.0), self.free.get(self.share(stage, index), 0.0))

    def _in_step(self, index: int, reads: dict[int, tuple[int, list[int]]], starts: dict[int, float]) -> None:
        """Everybody exchanges, then everybody attends."""
        sends = {s: sum(s in sources for _, sources in reads.values()) for s in reads}
        most = max([*sends.values(), *(len(sources) for _, sources in reads.values())])
        together = most * self.exchange.transfer + (self.exchange.latency if most else 0.0)
        now = dict(starts)
        costs = {s: self.cost(s, width) for s, (width, _) in reads.items()}
        waits: dict[int, list[tuple[float, float]]] = {s: [] for s in now}
        for _ in range(self.layers):
            own = {s: now[s] + costs[s].project for s in now}
            ready = max(own.values()) + together
            for s in now:
                waits[s].append((own[s], ready))
                now[s] = ready + costs[s].attend + costs[s].rest
        for s, end in now.items():
            self._finish(index, s, starts[s], end, waits[s])

    def _apart(self, index: int, stage: int, width: int, sources: list[int], start: float) -> None:
        """One stage, which waits for what it reads only."""
        exchange, running = self.exchange, self.running
        cost, own = self.cost(stage, width), running[stage]
        start = max(start, self.free.get(self.share(stage, index), 0.0))
        old = index - exchange.generations
        now, waits, exposed_layers = start, [], 0
        published, attended = [], []
        for layer in range(self.layers):
            # Pages of an earlier round are written anew once they have been sent.
            now = max(now, own.copied.get(old, [0.0] * self.layers)[layer])
            wanted = now + cost.project
            published.append(wanted)
            ready = wanted
            for source in sources:
                credit = own.attended.get(old, [0.0] * self.layers)[layer]
                arrival = max(running[source].published[layer], credit) + exchange.transfer
                copied = running[source].copied.setdefault(index, [0.0] * self.layers)
                copied[layer] = max(copied[layer], arrival)
                if index == self.looked_at:
                    edge = (source, stage)
                    self.over.exposed[edge] = self.over.exposed.get(edge, 0.0) + max(0.0, arrival - wanted)
                ready = max(ready, arrival)
            if ready > wanted + _SLACK:
                exposed_layers += 1
                waits.append((wanted, ready))
            unpack = exchange.unpack * len(sources) if exchange.mode == "early" else 0.0
            attended.append(ready + unpack + cost.attend)
            now = attended[-1] + cost.rest
        own.published = published
        own.attended[index] = attended
        if index == self.looked_at and stage < self.rules.steps:
            self.layers_exposed[stage] = exposed_layers
        self._finish(index, stage, start, now, waits)

    def _finish(
        self, index: int, stage: int, start: float, end: float, waits: Iterable[tuple[float, float]]
    ) -> None:
        self.over.finish[index, stage] = end
        device = self.share(stage, index)
        self.free[device] = max(end, self.free.get(device, 0.0))
        name = "store" if stage == self.rules.steps else f"s{stage}"
        self.over.spans.append(Span(name, str(index - stage), start, end, tuple(waits)))

    def result(self) -> Result:
        """The sums."""
        last = self.rules.steps - 1
        ends = [self.over.finish[index, last] for index in self.full]
        self.over.tick = median(b - a for a, b in pairwise(ends))
        self.over.first = self.over.finish[last, last]
        self.over.exposed_layers = tuple(self.layers_exposed)
        return self.over


def _reads(round: Round) -> dict[int, tuple[int, list[int]]]:
    """By stage, cleanest first: chunks that it reads, and the stages that write some of them in the round."""
    return {
        slot.stage: (
            len(slot.reads),
            [other.stage for other in round.slots if other is not slot and _read_by(slot, other)],
        )
        for slot in round.slots
    }


def _read_by(slot: Slot, other: Slot) -> bool:
    return any(read.key == other.key for read in slot.reads)
