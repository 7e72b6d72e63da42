"""What one rank of a ring holds: a range of layers, their pages of every stream, and their text keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Generic, TypeVar

import torch
from torch import Tensor

from wavecore.cache import ContextCache, PagePool, PoolSize
from wavecore.cache.edits import Edits
from wavecore.models.dit import CausalWanDiT, DiTConfig, SlotState, TextContext
from wavecore.models.int8_linear import adopt_int8
from wavecore.models.rope import rope_table
from wavecore.placement.layers.messages import Layer, Open, Work
from wavecore.placement.layers.timing import LayerTimes, clock_of
from wavecore.rounds import Slot
from wavecore.transfer import upload

Item = TypeVar("Item")
HEAD = -1  # index under which the head travels


class ByLayer(Sequence[Item], Generic[Item]):
    """Something of each layer that a rank holds, by the layer's number in the model."""

    def __init__(self, first: int, items: Sequence[Item]) -> None:
        self.first = first
        self.items = list(items)

    def __getitem__(self, layer: int) -> Item:  # type: ignore[override]
        return self.items[layer - self.first]

    def __iter__(self) -> Iterator[Item]:
        return iter(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def insert(self, layer: int, item: Item) -> None:
        """Add the layer before the first or after the last."""
        if layer < self.first or not self.items:
            self.first = layer
        self.items.insert(layer - self.first, item)

    def remove(self, layer: int) -> Item:
        """Take out the first or the last layer."""
        item = self.items.pop(layer - self.first)
        self.first += layer == self.first
        return item


@dataclass
class Stream:
    """One stream's context on a rank."""

    pool: PagePool
    cache: ContextCache
    grid: tuple[int, int]
    edits: Edits
    embedded: dict[int, Tensor] = field(default_factory=dict)  # texts [1, l, D]
    texts: dict[int, tuple[ByLayer[Tensor], ByLayer[Tensor]]] = field(default_factory=dict)

    @property
    def by_layer(self) -> list[ByLayer[Tensor]]:
        """Keys, values and un-roped keys."""
        pool = self.pool
        return [pool.k_pages, pool.v_pages, pool.unroped_pages]  # type: ignore[list-item]


class Shard:
    """Layers `first` .. `end` - 1 of a model.

    Parameters
    ----------
    dit : CausalWanDiT
        Of which the layers held have weights; others may be on the meta device.
    first, end : int
    device : torch.device, optional
        Where the layers will be, of a model that has none yet.

    Attributes
    ----------
    texts_built : int
        Times that text keys of a layer were computed: once for each text and layer, moves aside.
    """

    def __init__(self, dit: CausalWanDiT, first: int, end: int, device: torch.device | None = None) -> None:
        self.dit, self.first, self.end = dit, first, end
        self.streams: dict[int, Stream] = {}
        self.texts_built = 0
        self._times = LayerTimes(clock_of(device or next(dit.layer(first).parameters()).device))

    @staticmethod
    def empty(config: DiTConfig) -> CausalWanDiT:
        """A model without weights."""
        with torch.device("meta"):
            return CausalWanDiT(config).eval().requires_grad_(False)

    # -- streams -------------------------------------------------------------------------

    def open(self, message: Open) -> None:
        """Begin a stream."""
        config, grid = self.dit.config, (message.height, message.width)
        tokens = self.dit.tokens_per_frame(*grid)
        patches = grid[0] // config.patch[1], grid[1] // config.patch[2]
        weight = next(self.dit.layer(self.first).parameters())
        pool = PagePool(
            self.end - self.first,
            PoolSize(message.pages, message.unroped_pages),
            tokens,
            config.heads,
            config.head_dim,
            weight.dtype,
            weight.device,
            int8_keys=message.int8_keys,
        )
        for name in ("k_pages", "v_pages", "unroped_pages"):
            setattr(pool, name, ByLayer(self.first, getattr(pool, name)))
        rope: Callable[[Tensor], Tensor] = lambda positions: rope_table(  # noqa: E731
            positions[:, None], *patches, config.head_dim
        )
        cache = ContextCache(pool, rope)
        self.streams[message.stream] = Stream(pool, cache, patches, Edits(cache.table))

    def close(self, stream: int) -> None:
        """End a stream."""
        self.streams.pop(stream)

    # -- a round -------------------------------------------------------------------------

    @torch.inference_mode()
    def run(
        self, work: Work, states: Sequence[SlotState], texts: Sequence[Tensor]
    ) -> tuple[list[float], list[Tensor]]:
        """Take the batches of a round through the layers.

        Parameters
        ----------
        work : Work
        states : sequence of SlotState
            One for each batch of `batches`; changed in place.
        texts : sequence of Tensor [1, l, D]
            The embedded texts that are new.

        Returns
        -------
        list of float
            Seconds of each layer; on a GPU those of the last round that it has done.
        list of Tensor [s, D]
            Mean hidden states of each batch after layer `probe`, where that is one of these.
        """
        stream = self.streams[work.stream]
        for number, embedded in zip(work.new_text, texts, strict=True):
            stream.embedded[number] = embedded.clone()
            keys, values = [], []
            for layer in range(self.first, self.end):
                k, v = self._text_keys(layer, stream.embedded[number])
                keys.append(k)
                values.append(v)
            stream.texts[number] = ByLayer(self.first, keys), ByLayer(self.first, values)
        stream.cache.drop(work.drops)
        stream.edits.apply(work.edits, work.round.steps)
        stream.cache.begin(work.round)
        means = []
        for slots, state in zip(batches(work.round.slots), states, strict=True):
            pages = stream.cache.view(slots)
            state.text = self._text(stream, [work.text[slot.chunk] for slot in slots])
            for layer in range(self.first, self.end):
                with self._times.layer(layer):
                    self.dit.attend(state, layer, self.dit.project(state, layer, pages), pages)
                if layer == work.probe:
                    means.append(state.hidden.mean(1))
        stream.cache.end(work.round)
        for number in work.old_text:
            del stream.embedded[number], stream.texts[number]
        return self._times.end_round(self.first, self.end), means

    def state(self, work: Work, slots: Sequence[Slot], parts: Sequence[Tensor]) -> SlotState:
        """State of a batch from what another rank sent: hidden, modulation, time."""
        hidden, modulation, embedded_time = parts
        frames, (rows, columns) = slots[0].frames, self.streams[work.stream].grid
        positions = [list(range(slot.frame_start, slot.frame_start + frames)) for slot in slots]
        patch, channels = self.dit.config.patch, self.dit.config.in_channels
        shape = len(slots), channels, frames, rows * patch[1], columns * patch[2]
        return SlotState(
            hidden=hidden,
            modulation=modulation,
            time=embedded_time,
            rope=rope_table(
                upload(torch.tensor(positions, device="cpu"), hidden.device),
                rows,
                columns,
                self.dit.config.head_dim,
            ),
            text=TextContext((), ()),
            latents=torch.empty(shape, device="meta"),
            timesteps=torch.empty(0),
        )

    def _text_keys(self, layer: int, embedded: Tensor) -> tuple[Tensor, Tensor]:
        self.texts_built += 1
        return self.dit.layer(layer).text_keys(embedded)

    def _text(self, stream: Stream, numbers: Sequence[int]) -> TextContext:
        known = {
            number: TextContext(tuple(stream.texts[number][0]), tuple(stream.texts[number][1]))
            for number in set(numbers)
        }
        stacked = TextContext.stack([known[number] for number in numbers])
        keys, values = ByLayer(self.first, stacked.keys), ByLayer(self.first, stacked.values)
        return TextContext(keys, values)  # type: ignore[arg-type]

    # -- layers that change hands --------------------------------------------------------

    @torch.inference_mode()
    def give(self, layer: int) -> tuple[Layer, list[Tensor]]:
        """Take a layer out: its weights, and the pages in use of each stream in order of their numbers."""
        block = self.dit.layer(layer)
        weights = block.state_dict()
        tensors = list(weights.values())
        for _, stream in sorted(self.streams.items()):
            keys, values, unroped = (tensor.remove(layer) for tensor in stream.by_layer)
            pages, unroped_pages = stream.cache.table.used()
            tensors += [keys[pages], values[pages], unroped[unroped_pages]]
            for k, v in stream.texts.values():
                k.remove(layer)
                v.remove(layer)
        block.to("meta")
        if layer == self.first:
            self.first += 1
        else:
            self.end -= 1
        return Layer(layer, list(weights)), tensors

    @torch.inference_mode()
    def take(self, message: Layer, tensors: Sequence[Tensor]) -> None:
        """Put in a layer that `give` took out elsewhere."""
        layer, count = message.index, len(message.names)
        state = {name: tensor.clone() for name, tensor in zip(message.names, tensors[:count], strict=True)}
        if layer == HEAD:
            self.dit.head.load_state_dict(state, assign=True)
            return
        adopt_int8(self.dit.layer(layer), state)
        self.dit.layer(layer).load_state_dict(state, assign=True)
        if self.first == self.end:
            self.first, self.end = layer, layer + 1
        else:
            self.first, self.end = min(self.first, layer), max(self.end, layer + 1)
        rest = iter(tensors[count:])
        for _, stream in sorted(self.streams.items()):
            used = stream.cache.table.used()
            sizes = stream.pool.free_list.capacity, stream.pool.unroped_free_list.capacity
            for pages, ids, size in zip(
                stream.by_layer, (used[0], used[0], used[1]), (sizes[0], sizes[0], sizes[1]), strict=True
            ):
                moved = next(rest)
                whole = moved.new_zeros(size or 0, *moved.shape[1:])
                whole[ids] = moved
                pages.insert(layer, whole)
            for number, (k, v) in stream.texts.items():
                keys, values = self._text_keys(layer, stream.embedded[number])
                k.insert(layer, keys)
                v.insert(layer, values)


def batches(slots: Sequence[Slot]) -> list[list[Slot]]:
    """Slots of equal length, which run as one batch."""
    return [list(group) for _, group in groupby(slots, key=lambda slot: slot.frames)]
