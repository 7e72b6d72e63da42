"""Exchange through memory that the stages share: one-sided copies and counters, by the stream scheduler."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import PagePool, PageView, PoolSize, pages_used
from wavecore.placement.exchange import ExchangeMode, Job, PagesOf, PagesThere, Stream, runs
from wavecore.placement.segment import Layout, tensor_at
from wavecore.rounds import Round, Slot

_WRAP = 1 << 32
Copies = list[tuple[int, int, int, int, int]]  # from, its stride, to, its stride, bytes


class SharedExchange:
    """One stage's side of the exchange.

    Parameters
    ----------
    driver : wavecore._native.Driver
    stage : int
    layouts : list of Layout
        Of the segment of every stage.
    segments : list of int
        Address of the segment of every stage in this process.
    mode : "sync", "early" or "paged"
    generations : int
        See `wavecore.rounds.Stage`.
    timeout : float
        Seconds after which a wait is an error.
    record : bool
        Keep what happened for `take_records`.
    """

    def __init__(
        self,
        driver: Any,
        stage: int,
        layouts: list[Layout],
        segments: list[int],
        mode: ExchangeMode,
        generations: int,
        timeout: float,
        record: bool,
    ) -> None:
        from wavecore._native import Scheduler

        self._driver, self._stage, self._layouts, self._segments = driver, stage, layouts, segments
        self._mode, self._generations = mode, generations
        self._shape = layouts[0].shape
        self._jobs: deque[Stream] = deque(maxlen=3)
        self._there: dict[int, PagesThere] = {}
        own = layouts[stage]
        here = segments[stage]
        self._scheduler = Scheduler(driver, self._shape.layers, generations, timeout, record)
        self._out = {
            other: self._scheduler.add_outgoing(
                f"stage {other}", segments[other] + layouts[other].ready(stage), here + own.credit(other)
            )
            for other in range(stage)
        }
        self._in = {
            other: self._scheduler.add_incoming(
                f"stage {other}", here + own.ready(other), segments[other] + layouts[other].credit(stage)
            )
            for other in range(stage + 1, self._shape.stages)
        }
        self._edge_names = {edge: (stage, other) for other, edge in self._out.items()}
        self._edge_names |= {edge: (other, stage) for other, edge in self._in.items()}
        self._inbox: Any = None
        self._outbox: Any = None
        if stage > 0:
            self._inbox = Scheduler(driver, 1, 2, timeout)
            before = segments[stage - 1] + layouts[stage - 1].latent_credit
            self._inbox.add_incoming(f"stage {stage - 1}", here + own.latent_ready, before)
        if stage + 1 < self._shape.stages:
            self._outbox = Scheduler(driver, 1, 2, timeout)
            after = segments[stage + 1] + layouts[stage + 1].latent_ready
            self._outbox.add_outgoing(f"stage {stage + 1}", after, here + own.latent_credit)

    # -- streams -------------------------------------------------------------------------

    def start(self, job: Stream, pool: PagePool, pages_of: PagesOf) -> None:
        """Begin a stream."""
        self._jobs.append(job)
        self._pages_of = pages_of
        self._there = {
            other: job.pages_there(other, self._layouts[other].pool, pages_of) for other in self._out
        }

    def _was_at_work(self, stage: int, tick: int) -> bool:
        return any(job.at_work(stage, tick) for job in self._jobs)

    # -- latents -------------------------------------------------------------------------

    def latent(self, tick: int, frames: int) -> Tensor:
        """What the stage before made in the round before `tick`."""
        sent = tick - 1
        self._inbox.begin(sent % _WRAP, [], [(0, [])])
        self._inbox.gate(0)
        address = self._segments[self._stage] + self._layouts[self._stage].mailbox(sent)
        channels, height, width = self._shape.latent
        latent = tensor_at(address, (channels, frames, height, width), torch.float32).clone()
        self._inbox.attended(0)
        return latent

    def no_latent(self, tick: int) -> None:
        """The stage before has made nothing: what it makes in the round after next may come."""
        if self._inbox is not None:
            self._inbox.begin((tick - 1) % _WRAP, [], [])
            self._inbox.attended(0)

    def hand_on(self, tick: int, latent: Tensor) -> None:
        """Give a latent to the stage after this one."""
        latent = latent.float().contiguous()
        after = self._stage + 1
        target = self._segments[after] + self._layouts[after].mailbox(tick)
        copy = (latent.data_ptr(), 0, target, 0, latent.numel() * 4)
        # The stage after takes what was sent in a round in the round after that.
        needs_credit = self._was_at_work(after, tick - 1)
        self._outbox.begin(tick % _WRAP, [(0, needs_credit, [copy])], [])
        self._outbox.publish(0)
        self._outbox.drain(0)  # the tensor goes with this call

    # -- keys and values -----------------------------------------------------------------

    def begin(self, tick: int, index: int, round: Round, pages: PageView | None) -> None:
        """Begin round `index` of the stream, which is `tick` of all streams."""
        job = self._jobs[-1]
        own = job.own(self._stage, round)
        outgoing = []
        for other, edge in self._out.items():
            if own is None or pages is None or not job.takes(other, self._stage, tick):
                continue
            needs_credit = self._was_at_work(other, tick - self._generations)
            outgoing.append((edge, needs_credit, self._outgoing(own, pages, other, index, tick)))
        incoming = [
            (self._in[slot.stage], self._unpack(slot, tick)) for slot in round.slots if slot is not own
        ]
        self._scheduler.begin(tick % _WRAP, outgoing, incoming)

    def _outgoing(self, own: Slot, pages: PageView, other: int, index: int, tick: int) -> Copies:
        layout, there = self._layouts[other], self._segments[other]
        slot, page_ids, unroped_ids = self._there[other](index, own)
        source = pages.unroped_ids if own.keep_unroped else pages.write_ids
        assert source is not None
        keys, values = source[0].tolist(), pages.write_ids[0].tolist()
        if self._mode == "early":
            start = there + layout.arrival(self._stage, tick)
            stride, half = layout.buffer_stride, own.frames * self._shape.page_bytes
            page = self._shape.page_bytes
            to_keys = [(start + i * page, stride) for i in range(own.frames)]
            to_values = [(start + half + i * page, stride) for i in range(own.frames)]
            return self._joined(own.keep_unroped, keys, values, to_keys, to_values)
        to_values = [(there + layout.values(page), layout.page_stride) for page in page_ids]
        if slot.keep_unroped:
            to_keys = [(there + layout.unroped(page), layout.unroped_stride) for page in unroped_ids]
        else:
            to_keys = [(there + layout.keys(page), layout.page_stride) for page in page_ids]
        return self._joined(own.keep_unroped, keys, values, to_keys, to_values)

    def _joined(
        self,
        unroped: bool,
        keys: list[int],
        values: list[int],
        to_keys: list[tuple[int, int]],
        to_values: list[tuple[int, int]],
    ) -> Copies:
        here, own, page = self._segments[self._stage], self._layouts[self._stage], self._shape.page_bytes
        copies: Copies = []
        for ids, at, stride, targets in (
            (
                keys,
                own.unroped if unroped else own.keys,
                own.unroped_stride if unroped else own.page_stride,
                to_keys,
            ),
            (values, own.values, own.page_stride, to_values),
        ):
            first, to_stride = targets[0][0], targets[0][1]
            pairs = [(i, (address - first) // page) for i, (address, _) in zip(ids, targets, strict=True)]
            for source, target, count in runs(pairs):
                copies.append((here + at(source), stride, first + target * page, to_stride, count * page))
        return copies

    def _unpack(self, slot: Slot, tick: int) -> Copies:
        """From the buffer in which a stage's keys and values arrived to its pages here."""
        if self._mode != "early":
            return []
        here, own, page = self._segments[self._stage], self._layouts[self._stage], self._shape.page_bytes
        start, stride = here + own.arrival(slot.stage, tick), own.buffer_stride
        page_ids, unroped_ids = self._pages_of(slot)
        if slot.keep_unroped:
            keys = [(own.unroped(i), own.unroped_stride) for i in unroped_ids]
        else:
            keys = [(own.keys(i), own.page_stride) for i in page_ids]
        values = [(own.values(i), own.page_stride) for i in page_ids]
        return [
            (start + i * page, stride, here + at, to_stride, page)
            for i, (at, to_stride) in enumerate(keys + values)
        ]

    def acquire(self, layer: int) -> None:
        """Before the layer's own pages are written."""
        self._scheduler.acquire(layer)

    def publish(self, layer: int) -> None:
        """After they are written."""
        self._scheduler.publish(layer)
        if self._mode == "sync":
            self._scheduler.drain(layer)

    def gate(self, layer: int) -> None:
        """Before attention."""
        self._scheduler.gate(layer)

    def attended(self, layer: int) -> None:
        """After attention."""
        self._scheduler.attended(layer)

    def cancel(self, reason: str) -> None:
        """End every wait with an error, from any thread."""
        for scheduler in (self._scheduler, self._inbox, self._outbox):
            if scheduler is not None:
                scheduler.cancel(reason)

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""
        return int(self._scheduler.bytes_sent)

    def take_records(self) -> list[Mapping[str, Any]]:
        """What happened since the last call: publications, waits and attentions, with layer and edge."""
        kept: list[Mapping[str, Any]] = []
        for step, edge, layer, tick, begin, end, written in self._scheduler.take_records():
            source, target = self._edge_names.get(edge, (None, None))
            kept.append(
                {
                    "step": step,
                    "layer": layer,
                    "tick": tick,
                    "from": source,
                    "to": target,
                    "begin": begin,
                    "end": end,
                    "written": written,
                }
            )
        return kept


def pool_sizes(job: Job, chunks: int | None) -> list[PoolSize]:
    """Pages of every stage for a stream, found by running its table over the rounds."""
    settled = job.rules.settled() + job.generations + 1
    count = settled if chunks is None else min(chunks, settled)
    return [
        pages_used(
            stage.round(index, count if chunks is not None and chunks <= settled else None)
            for index in stage.span(count)
        )
        for stage in job.stages
    ]
