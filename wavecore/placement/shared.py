"""Exchange through memory that the ranks share: one-sided copies and counters, by the stream scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from wavecore.cache import PageView
from wavecore.placement.exchange import Arrival, ExchangeMode, Target, runs
from wavecore.placement.segment import Layout, tensor_at
from wavecore.rounds import Slot, StageMap

_WRAP = 1 << 32
Copies = list[tuple[int, int, int, int, int]]  # from, its stride, to, its stride, bytes


class SharedExchange:
    """One rank's side of the exchange.

    Parameters
    ----------
    driver : wavecore._native.Driver
    rank : int
    map : StageMap
    layouts : list of Layout
        Of the segment of every rank.
    segments : list of int
        Address of the segment of every rank in this process.
    mode : "sync", "early" or "paged"
    generations : int
        Rounds that may be under way on the pages of a rank.
    timeout : float
        Seconds after which a wait is an error.
    record : bool
        Keep what happened for `take_records`.
    """

    def __init__(
        self,
        driver: Any,
        rank: int,
        map: StageMap,
        layouts: list[Layout],
        segments: list[int],
        mode: ExchangeMode,
        generations: int,
        timeout: float,
        record: bool,
    ) -> None:
        from wavecore._native import Scheduler

        self._rank, self._layouts, self._segments, self._mode = rank, layouts, segments, mode
        self._shape = layouts[0].shape
        self._own, self._here = layouts[rank], segments[rank]
        self._scheduler = scheduler = Scheduler(driver, self._shape.layers, generations, timeout, record)
        self._mail = Scheduler(driver, 1, 2, timeout)
        self._out: dict[tuple[int, int], int] = {}  # edges, by stage and rank
        self._in: dict[tuple[int, int], int] = {}
        self._mail_out: dict[tuple[int, int], int] = {}
        self._mail_in: dict[tuple[int, int], int] = {}
        for other in range(map.ranks):
            if other == rank:
                continue
            there, layout, name = segments[other], layouts[other], map.name(other)
            credit = self._here + self._own.credit(other)
            scheduler.add_credit(there + layout.credit(rank))
            for stage in map.stages_of(rank):
                if map.sends(rank, other):
                    ready = there + layout.ready(stage, rank)
                    self._out[stage, other] = scheduler.add_outgoing(name, ready, credit)
                ready = self._here + self._own.latent_ready(stage, other)
                self._mail_in[stage, other] = self._mail.add_incoming(name, ready)
            for stage in map.stages_of(other):
                if map.sends(other, rank):
                    ready = self._here + self._own.ready(stage, other)
                    self._in[stage, other] = scheduler.add_incoming(name, ready)
                ready = there + layout.latent_ready(stage, rank)
                self._mail_out[stage, other] = self._mail.add_outgoing(name, ready, credit)
        self._edges: dict[int, tuple[int, int]] = {}  # of the slot at work, for the log

    def expect(self, tick: int, arrivals: Sequence[Arrival]) -> None:
        """Begin a tick: nothing is to be said, others write by themselves."""

    # -- latents -------------------------------------------------------------------------

    def latent(self, tick: int, stage: int, rank: int, frames: int) -> Tensor:
        """What `rank` has handed on for a stage in the tick before."""
        sent = tick - 1
        self._mail.begin(sent % _WRAP, [], [(self._mail_in[stage, rank], [])])
        self._mail.gate(0)
        channels, height, width = self._shape.latent
        address = self._here + self._own.mailbox(stage, sent)
        return tensor_at(address, (channels, frames, height, width), torch.float32).clone()

    def hand_on(self, tick: int, stage: int, rank: int, latent: Tensor) -> None:
        """Give `rank` a latent for a stage."""
        latent = latent.float().contiguous()
        target = self._segments[rank] + self._layouts[rank].mailbox(stage, tick)
        copy = (latent.data_ptr(), 0, target, 0, latent.numel() * 4)
        self._mail.begin(tick % _WRAP, [(self._mail_out[stage, rank], [copy])], [])
        self._mail.publish(0)
        self._mail.drain(0)  # the tensor goes with this call

    # -- keys and values -----------------------------------------------------------------

    def begin(
        self,
        tick: int,
        slot: Slot | None,
        pages: PageView | None,
        targets: Sequence[Target],
        arrivals: Sequence[Arrival],
        last: bool,
    ) -> None:
        """Begin a slot of a tick."""
        self._edges.clear()
        outgoing, incoming = [], []
        if slot is not None and pages is not None:
            for target in targets:
                edge = self._out[slot.stage, target.rank]
                self._edges[edge] = slot.stage, target.reader
                outgoing.append((edge, self._outgoing(slot, pages, target, tick)))
        for arrival in arrivals:
            source = arrival.slot.stage
            edge = self._in[source, arrival.rank]
            self._edges[edge] = source, source if slot is None else slot.stage
            incoming.append((edge, self._unpack(arrival, tick)))
        self._scheduler.begin(tick % _WRAP, outgoing, incoming, last)

    def _outgoing(self, slot: Slot, pages: PageView, target: Target, tick: int) -> Copies:
        layout, there = self._layouts[target.rank], self._segments[target.rank]
        source = pages.unroped_ids if slot.keep_unroped else pages.write_ids
        assert source is not None
        keys, values = source[0].tolist(), pages.write_ids[0].tolist()
        if self._mode == "early":
            start = there + layout.arrival(slot.stage, tick)
            stride, page = layout.buffer_stride, self._shape.page_bytes
            key = self._key_bytes(slot)
            to_keys = [(start + i * key, stride) for i in range(slot.frames)]
            to_values = [(start + slot.frames * key + i * page, stride) for i in range(slot.frames)]
            return self._joined(slot, keys, values, to_keys, to_values)
        to_values = [(there + layout.values(page), layout.page_stride) for page in target.pages]
        if slot.keep_unroped:
            to_keys = [(there + layout.unroped(page), layout.unroped_stride) for page in target.unroped]
        else:
            to_keys = [(there + layout.keys(page), layout.key_stride) for page in target.pages]
        return self._joined(slot, keys, values, to_keys, to_values)

    def _key_bytes(self, slot: Slot) -> int:
        """Bytes of a page of keys, as a slot sends them."""
        return self._shape.page_bytes if slot.keep_unroped else self._shape.key_bytes

    def _joined(
        self,
        slot: Slot,
        keys: list[int],
        values: list[int],
        to_keys: list[tuple[int, int]],
        to_values: list[tuple[int, int]],
    ) -> Copies:
        here, own, unroped = self._here, self._own, slot.keep_unroped
        copies: Copies = []
        for ids, at, stride, targets, page in (
            (
                keys,
                own.unroped if unroped else own.keys,
                own.unroped_stride if unroped else own.key_stride,
                to_keys,
                self._key_bytes(slot),
            ),
            (values, own.values, own.page_stride, to_values, self._shape.page_bytes),
        ):
            first, to_stride = targets[0][0], targets[0][1]
            pairs = [(i, (address - first) // page) for i, (address, _) in zip(ids, targets, strict=True)]
            for source, target, count in runs(pairs):
                copies.append((here + at(source), stride, first + target * page, to_stride, count * page))
        return copies

    def _unpack(self, arrival: Arrival, tick: int) -> Copies:
        """From the buffer in which a slot's keys and values arrived to its pages here."""
        if self._mode != "early":
            return []
        here, own, page, key = self._here, self._own, self._shape.page_bytes, self._key_bytes(arrival.slot)
        start, stride = here + own.arrival(arrival.slot.stage, tick), own.buffer_stride
        if arrival.slot.keep_unroped:
            keys = [(own.unroped(i), own.unroped_stride, key) for i in arrival.unroped]
        else:
            keys = [(own.keys(i), own.key_stride, key) for i in arrival.pages]
        copies: Copies = []
        for at, to_stride, count in keys + [(own.values(i), own.page_stride, page) for i in arrival.pages]:
            copies.append((start, stride, here + at, to_stride, count))
            start += count
        return copies

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
        self._scheduler.cancel(reason)
        self._mail.cancel(reason)

    @property
    def bytes_sent(self) -> int:
        """Bytes of keys and values sent so far."""
        return int(self._scheduler.bytes_sent)

    def take_records(self) -> list[Mapping[str, Any]]:
        """What happened since the last call: publications, waits and attentions, with layer and edge."""
        kept: list[Mapping[str, Any]] = []
        for step, edge, layer, tick, begin, end, written in self._scheduler.take_records():
            source, target = self._edges.get(edge, (None, None))
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
