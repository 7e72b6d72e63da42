"""A steady micro-step makes the host wait for nothing: no value is read back, no copy to the device blocks.

The model is on the meta device here: reading a value there is an error, a copy shows how it is made.
"""

from __future__ import annotations

from contextlib import suppress

import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, text_features, tiny_dit
from torch.overrides import TorchFunctionMode

from wavecore.cache import pages_needed
from wavecore.models.int8 import quantize_dit
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.rounds import Rounds, Sequential, StreamBatch, Wavefront
from wavecore.transfer import upload

READS = {
    *("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "__contains__"),
    *("nonzero", "equal", "allclose", "masked_select", "unique", "argwhere"),
}


class HostWaits(TorchFunctionMode):
    """Counts calls for which the host would wait on a GPU, and copies to the device that do not wait."""

    def __init__(self):
        super().__init__()
        self.count = self.uploads = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs, name = kwargs or {}, getattr(function, "__name__", "")
        first = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if first is None:
            elsewhere = kwargs.get("device") is not None and torch.device(kwargs["device"]).type != "cpu"
            self.count += name in ("tensor", "as_tensor", "asarray") and elsewhere
        elif name in READS:
            self.count += not first.is_cpu
        elif name in ("__getitem__", "__setitem__"):
            self.count += not first.is_cpu and any(map(on_host, (*args[1:2], *as_tuple(args[1]), *args[2:])))
        elif name in ("to", "copy_", "type_as"):
            other = next((x for x in (*args[1:], kwargs.get("device")) if places(x)), None)
            if other is not None and places(other) != first.device.type:
                waits = not (kwargs.get("non_blocking") or any(x is True for x in args[1:]))
                self.count += waits
                self.uploads += not waits
        return function(*args, **kwargs)


def places(value):
    """Type of the device that an argument of `to` or `copy_` names."""
    if isinstance(value, torch.Tensor):
        return value.device.type
    return torch.device(value).type if isinstance(value, str | torch.device) else None


def on_host(value):
    return isinstance(value, list) or (isinstance(value, torch.Tensor) and value.is_cpu)


def as_tuple(value):
    return value if isinstance(value, tuple) else ()


@pytest.mark.parametrize("steps", [1, 2])
@pytest.mark.parametrize("limit", [None, 9])
def test_a_steady_micro_step_waits_for_nothing(steps, limit):
    dit = tiny_dit().to("meta")
    rules = StreamBatch(steps=steps, position_limit=limit)
    placement = LocalPlacement(dit, local_cache(dit, pages_needed(rules), HEIGHT, WIDTH))
    handoff = Handoff(levels_of(steps), 0, (4, HEIGHT, WIDTH), "meta")
    text = dit.encode_text(text_features().to("meta"))
    placement.probe = 1
    rotated = 0
    for round in Rounds(rules, 16):
        with HostWaits() as waits:
            every = {slot.chunk: text for slot in round.slots}
            placement.submit(round, handoff.latents(round), handoff.levels_of(round), every)
            handoff.advance(round, placement.collect())
        assert waits.count == 0
        assert waits.uploads >= 5, "the round's tables do go to the device"
        rotated += waits.uploads > 8
    assert rotated or limit is None, "keys were rotated to lower positions on the way"


@pytest.mark.parametrize("int8", [False, True], ids=["", "int8"])
@pytest.mark.parametrize(
    "rules",
    [
        Wavefront(steps=2),
        Wavefront(steps=2, anchor_position="reference"),
        Sequential(steps=2, anchor_chunks=1),
    ],
    ids=["wavefront", "moving anchor", "sequential"],
)
def test_no_round_of_a_stream_waits(rules, int8):
    """Nor with layers and keys in int8."""
    dit = tiny_dit()
    if int8:
        dit.int8_keys = True
        quantize_dit(dit)
    dit.to("meta")
    placement = LocalPlacement(dit, local_cache(dit, pages_needed(rules), HEIGHT, WIDTH))
    handoff = Handoff(levels_of(rules.steps), 0, (4, HEIGHT, WIDTH), "meta")
    text = dit.encode_text(text_features().to("meta"))
    with HostWaits() as waits:
        for round in Rounds(rules, 9):
            every = {slot.chunk: text for slot in round.slots}
            placement.submit(round, handoff.latents(round), handoff.levels_of(round), every)
            handoff.advance(round, placement.collect())
    assert waits.count == 0 and waits.uploads > 12


def test_the_counter_counts():
    there = torch.ones(3, device="meta")
    for waiting in (
        lambda: there.item(),
        lambda: bool(there[0]),
        lambda: there.tolist(),
        lambda: there[[0, 1]],
        lambda: there.__setitem__(slice(1), torch.ones(1)),
        lambda: torch.ones(2).to("meta"),
        lambda: torch.tensor([1, 2], device="meta"),
        lambda: there.copy_(torch.ones(3)),
        lambda: there.nonzero(),
    ):
        with HostWaits() as waits, suppress(RuntimeError, NotImplementedError):
            waiting()
        assert waits.count == 1
    with HostWaits() as waits:
        upload(torch.ones(2), "meta")
        there[0] = there[1] * 2
    assert (waits.count, waits.uploads) == (0, 1)
