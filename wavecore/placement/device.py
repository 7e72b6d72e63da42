"""Several streams on one device: what waits runs as one batch, chosen by the SLO-aware controller."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from itertools import groupby

import torch
from torch import Tensor

from wavecore.cache import ContextCache, PagePool, PageView, PoolSize
from wavecore.control.clock import SECOND
from wavecore.control.streaming import BatchingController
from wavecore.errors import UsageError, WavecoreError
from wavecore.models.dit import CausalWanDiT, SlotState, TextContext
from wavecore.placement.local import Batch, local_cache
from wavecore.rounds import Key, NoiseLevel, Round, Rules
from wavecore.rounds.calls import CallRules
from wavecore.transfer import wait_for


@dataclass
class _Job:
    """A round that waits for the device."""

    cache: ContextCache
    round: Round
    latents: Mapping[int, Tensor]
    levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel]
    text: Mapping[int, TextContext]
    deadline: int
    probe: int | None = None
    embeddings: dict[int, Tensor] = field(default_factory=dict)
    result: Future[dict[int, Tensor]] = field(default_factory=Future)


class SharedDevice:
    """Runs rounds of several streams, each from a thread of its own, in common batches.

    Parameters
    ----------
    dit : CausalWanDiT
    controller : BatchingController
        Its frames are chunks here: `lengths` is (1,), `max_batch` the most streams.
    slo : float
        Seconds from a round's submission to its result.
    chunks_per_second : float
        Of each stream, for admission; 0 where somebody else admits streams.
    clock : callable
        Nanoseconds.

    Attributes
    ----------
    batches : deque of int
        Streams in each of the latest passes.
    """

    def __init__(
        self,
        dit: CausalWanDiT,
        controller: BatchingController,
        slo: float,
        chunks_per_second: float,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        if controller.settings.lengths != (1,):
            raise UsageError(f"lengths: expected (1,), a chunk, got {controller.settings.lengths}")
        self.dit, self.controller = dit, controller
        self.batches: deque[int] = deque(maxlen=10_000)
        self._slo, self._rate, self._clock = slo, chunks_per_second, clock
        self._pool: PagePool | None = None
        self._size: tuple[PoolSize, int, int] | None = None
        self._jobs: list[_Job] = []
        self._open = 0
        self._closed = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._work, name="shared device", daemon=True)
        self._thread.start()

    def open(self, rules: Rules | CallRules, pages: PoolSize, height: int, width: int) -> SharedPlacement:
        """Admit a stream.

        Raises
        ------
        UsageError
            Another size than that of the first stream.
        WavecoreError
            The device cannot serve one more within the objective.
        """
        with self._changed:
            most = self.controller.settings.max_batch
            if self._pool is None:
                shared = PoolSize(most * pages.pages, most * pages.unroped_pages)
                self._pool = local_cache(self.dit, shared, height, width).pool
                self._size = pages, height, width
            if self._size != (pages, height, width):
                raise UsageError("size: expected the size and rounds of the streams that share the device")
            admitted = self._open < most
            if self._rate:
                admitted = self.controller.admits(self._open + 1, self._rate, self._slo)
            if self._open and not admitted:
                raise WavecoreError(
                    f"device: expected room for one more stream, got {self._open} at its limit"
                )
            self._open += 1
        return SharedPlacement(self, local_cache(self.dit, pages, height, width, pool=self._pool))

    @property
    def full(self) -> bool:
        """Whether there is no room for one more stream."""
        return self._open >= self.controller.settings.max_batch

    def close(self) -> None:
        """End the thread; rounds that wait fail."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    # -- from the streams' threads -------------------------------------------------------

    def submit(self, job: _Job) -> None:
        """Queue a round."""
        with self._changed:
            if self._closed:
                raise WavecoreError("device: expected an open device, got a closed one")
            self._jobs.append(job)
            self._changed.notify_all()

    def leave(self, cache: ContextCache) -> None:
        """End a stream."""
        with self._changed:
            cache.close()
            self._open -= 1

    def due(self) -> int:
        """Deadline of a round that is submitted now."""
        return self._clock() + round(self._slo * SECOND)

    # -- the device's thread -------------------------------------------------------------

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs and not self._closed:
                    self._changed.wait()
                if self._closed:
                    for job in self._jobs:
                        job.result.set_exception(WavecoreError("device: closed while a round waited"))
                    return
                jobs = self._choose()
            began = self._clock()
            try:
                results = run_together(self.dit, jobs)
                wait_for(self.dit.patch_embedding.weight.device)  # for its time, by which passes are chosen
            except Exception as error:  # handed to the streams that wait
                for job in jobs:
                    job.result.set_exception(error)
                continue
            rows = sum(len(job.round.slots) for job in jobs)
            if rows:  # streams that fill, drain or stand still have fewer than noise levels
                self.controller.cost.observe(rows, max(1, self._clock() - began) / SECOND)
            self.batches.append(len(jobs))
            for job, result in zip(jobs, results, strict=True):
                job.result.set_result(result)

    def _choose(self) -> list[_Job]:
        waiting = [[job.deadline] for job in self._jobs]
        decision = self.controller.decide(self._clock(), waiting, self._rate * self._open)
        assert decision is not None
        chosen = [self._jobs[index] for index in decision.streams]
        self._jobs = [job for job in self._jobs if job not in chosen]
        return chosen


class SharedPlacement:
    """One stream on a shared device; the same calls and attributes as `LocalPlacement` has for a session."""

    depth = 1

    def __init__(self, device: SharedDevice, cache: ContextCache) -> None:
        self._device, self.cache = device, cache
        self.probe: int | None = None
        self.embeddings: dict[int, Tensor] = {}
        self._waiting: deque[_Job] = deque()
        self._closed = False

    def encode_text(self, features: Tensor) -> TextContext:
        """Condition of text features [1, l, text_dim]."""
        return self._device.dit.encode_text(features)

    def submit(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> None:
        """Queue a round; parameters as for `LocalPlacement.run`."""
        job = _Job(self.cache, round, latents, levels, text, self._device.due(), self.probe)
        self._waiting.append(job)
        self._device.submit(job)

    def collect(self) -> dict[int, Tensor]:
        """Wait for the results of the oldest round submitted."""
        job = self._waiting.popleft()
        estimates, self.embeddings = job.result.result(), job.embeddings
        return estimates

    def run(
        self,
        round: Round,
        latents: Mapping[int, Tensor],
        levels: Mapping[int, NoiseLevel] | Sequence[NoiseLevel],
        text: Mapping[int, TextContext],
    ) -> dict[int, Tensor]:
        """Queue a round and wait for its results; see `LocalPlacement.run`."""
        self.submit(round, latents, levels, text)
        return self.collect()

    def drop(self, keys: Iterable[Key]) -> None:
        """Forget keys that no further round reads."""
        self.cache.drop(keys)

    def close(self) -> None:
        """Give up the stream's place."""
        if not self._closed:
            self._closed = True
            self._device.leave(self.cache)


@torch.inference_mode()
def run_together(dit: CausalWanDiT, jobs: Sequence[_Job]) -> list[dict[int, Tensor]]:
    """Run rounds of several streams on one pool as one; slots of equal length are one batch."""
    pieces: list[tuple[int, Batch]] = []
    for index, job in enumerate(jobs):
        job.cache.begin(job.round)
        for _, group in groupby(job.round.slots, key=lambda slot: slot.frames):
            slots = list(group)
            view = job.cache.view(slots)
            batch = Batch(dit, slots, view, job.round.steps, job.latents, job.levels, job.text)
            pieces.append((index, batch))
    results: list[dict[int, Tensor]] = [{} for _ in jobs]
    pieces.sort(key=lambda piece: piece[1].slots[0].frames)
    for _, equal in groupby(pieces, key=lambda piece: piece[1].slots[0].frames):
        together = list(equal)
        state = _join([batch.state for _, batch in together])
        pages = _join_pages([batch.pages for _, batch in together])
        sizes = [len(batch.slots) for _, batch in together]
        for layer in range(dit.config.layers):
            dit.attend(state, layer, dit.project(state, layer, pages), pages)
            asked = [jobs[index].probe == layer for index, _ in together]
            if any(asked):
                means = state.hidden.mean(1).split(sizes)
                for (index, batch), own, wanted in zip(together, means, asked, strict=True):
                    stages = [slot.stage for slot in batch.slots]
                    jobs[index].embeddings |= dict(zip(stages, own, strict=True)) if wanted else {}
        hidden = state.hidden.split(sizes)
        for (index, batch), own in zip(together, hidden, strict=True):
            batch.state = replace(batch.state, hidden=own)
            estimates = batch.finish(dit)
            estimates.pop(batch.steps, None)  # a store pass is there for its keys and values
            results[index] |= estimates
    for job in jobs:
        job.cache.end(job.round)
    return results


def _join(states: Sequence[SlotState]) -> SlotState:
    if len(states) == 1:
        return replace(states[0])
    keys = zip(*(state.text.keys for state in states), strict=True)
    values = zip(*(state.text.values for state in states), strict=True)
    return SlotState(
        hidden=torch.cat([state.hidden for state in states]),
        modulation=torch.cat([state.modulation for state in states]),
        time=torch.cat([state.time for state in states]),
        rope=torch.cat([state.rope for state in states]),
        text=TextContext(tuple(map(torch.cat, keys)), tuple(map(torch.cat, values))),  # type: ignore[arg-type]
        latents=torch.cat([state.latents for state in states]),
        timesteps=torch.cat([state.timesteps for state in states]),
    )


def _join_pages(views: Sequence[PageView]) -> PageView:
    if len(views) == 1:
        return views[0]
    width = max(view.read_table.shape[1] for view in views)

    def padded(table: Tensor, fill: int) -> Tensor:
        return torch.nn.functional.pad(table, (0, width - table.shape[1]), value=fill)

    unroped = next((view.unroped_pages for view in views if view.unroped_pages), None)
    ids = [
        torch.full_like(view.write_ids, -1) if view.unroped_ids is None else view.unroped_ids
        for view in views
    ]
    return PageView(
        k_pages=views[0].k_pages,
        v_pages=views[0].v_pages,
        write_ids=torch.cat([view.write_ids for view in views]),
        read_table=torch.cat([padded(view.read_table, -1) for view in views]),
        read_lengths=torch.cat([padded(view.read_lengths, 0) for view in views]),
        unroped_pages=unroped,
        unroped_ids=None if unroped is None else torch.cat(ids),
        key_staging=views[0].key_staging,
    )
