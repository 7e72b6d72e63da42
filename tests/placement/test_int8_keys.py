"""Caches that hold keys in int8: the same bits under every placement, and half of the bytes between ranks."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from support.models import HEIGHT, WIDTH, levels_of, run_stream, tiny_dit
from support.replicas import LATENT, drive, sent_bytes
from support.ring import alone, around
from torch import Tensor

import wavecore
from wavecore import ops
from wavecore.cache import PagePool, PoolSize, pages_needed
from wavecore.cli import run
from wavecore.errors import UsageError
from wavecore.models.dit import CausalWanDiT
from wavecore.placement import local_cache
from wavecore.placement.layers import Ring
from wavecore.placement.nursery import Nursery
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.placement.segment import StreamShape
from wavecore.rounds import Round, StreamBatch, Wavefront

CHUNKS = 8
TURNED = {"anchor_position": "reference"}  # anchors move, so that their keys are sent before rotation


@pytest.fixture(scope="module")
def dit() -> CausalWanDiT:
    dit = tiny_dit()
    dit.int8_keys = True
    return dit


@pytest.fixture(scope="module")
def nursery(dit: CausalWanDiT) -> Any:
    nursery = Nursery(dit)
    yield nursery
    nursery.close()


def rounds_of(rules: Wavefront, chunks: int = CHUNKS) -> list[Round]:
    return [rules.round(index, chunks) for index in range(rules.count(chunks))]


def local(dit: CausalWanDiT, rules: Wavefront, order: str = "slots") -> list[Tensor]:
    return run_stream(dit, rounds_of(rules), levels_of(rules.steps), order)[0]


def same(some: list[Tensor], others: list[Tensor]) -> bool:
    return len(some) == len(others) and all(map(torch.equal, some, others))


@pytest.mark.parametrize("more", [{}, TURNED], ids=["still", "turned"])
def test_latents_stay_close_to_those_of_whole_keys(dit: CausalWanDiT, more: dict[str, Any]) -> None:
    """Free pages are poisoned, so that a key that was not quantised, or not turned, shows."""
    rules = Wavefront(steps=2, **more)
    plain, held = local(tiny_dit(), rules), local(dit, rules)
    assert not same(plain, held)
    for a, b in zip(plain, held, strict=True):
        assert torch.cosine_similarity(a.flatten(), b.flatten(), dim=0) > 0.999
    assert same(held, local(dit, rules, "layers"))


@pytest.mark.parametrize("more", [{}, TURNED], ids=["still", "turned"])
@pytest.mark.parametrize(
    "how",
    [{"mode": mode, "transport": to} for to in ("shared", "gloo") for mode in ("paged", "early", "sync")]
    + [{"devices": ("cpu",) * 3}],
    ids=lambda how: "-".join(how.values()) if "mode" in how else "devices",
)
def test_replicas(dit: CausalWanDiT, nursery: Nursery, how: dict[str, Any], more: dict[str, Any]) -> None:
    rules = Wavefront(steps=2, **more)
    options = ReplicaOptions(ranks=3, timeout=30, **how)
    with Replicas(dit, rules, LATENT, options, nursery=nursery) as replicas:
        assert same(drive(replicas, dit, rules, CHUNKS), local(dit, rules))
        sent = sum(sent_bytes(replicas, 0).values())
    config, tokens = dit.config, dit.tokens_per_frame(HEIGHT, WIDTH)
    values = tokens * config.dim * 4
    keys = ops.key_page_bytes(tokens, config.heads, config.head_dim)
    frames = sum(
        slot.frames * (values + (values if slot.keep_unroped else keys))
        for round in rounds_of(rules)
        for edge in round.edges()
        for slot in round.slots
        if slot.stage == edge[0]
    )
    assert sent == frames * config.layers


def test_half_of_the_bytes_in_a_two_byte_model() -> None:
    """Keys of Wan 1.3B at 480 x 832: the scales and the mean take a few hundredths."""
    plain = StreamShape(5, 5, 30, 1560, 12, 128, 3, (16, 60, 104), torch.bfloat16)
    held = replace(plain, int8_keys=True)
    assert 0.5 < held.key_bytes / plain.key_bytes < 0.52
    assert 0.75 < held.edge_bytes(3, False) / plain.edge_bytes(3, False) < 0.76
    assert held.edge_bytes(3, True) == plain.edge_bytes(3, True)


def test_a_ring_whose_layers_move() -> None:
    dit = tiny_dit(layers=4)
    dit.int8_keys = True
    rules = StreamBatch(steps=2, lag=2, position_limit=14)
    expected = alone(dit, rules, 12, 2)
    with Ring(dit, 2) as ring:

        def move(index: int) -> None:
            if index in (3, 8):
                ring.move((1, 3) if index == 3 else (3, 1))

        assert same(around(ring, rules, 12, 2, each=move)[0], expected)


def test_streams_that_share_a_pool(dit: CausalWanDiT) -> None:
    rules = Wavefront(steps=2)
    size = pages_needed(rules)
    shared = local_cache(dit, PoolSize(*(2 * count for count in size)), HEIGHT, WIDTH, poison=True).pool
    first, cache = run_stream(dit, rounds_of(rules), levels_of(2), pool=shared)
    assert same(first, local(dit, rules)) and cache.pool.k_pages[0].dtype == torch.uint8


def test_poisoned_pages_are_nan() -> None:
    pool = PagePool(1, 2, 5, 2, 8, poison=True, int8_keys=True)
    keys = ops.key_pages_in(pool.k_pages[0], 5, 2, 8)
    assert keys.scale.isnan().all() and keys.mean.isnan().all()


def test_not_for_a_sequence(dit: CausalWanDiT) -> None:
    pipe = wavecore.load("sprites", key_cache="int8")
    with pytest.raises(UsageError, match=r"^placement: expected keys in the dtype of the model for sequence"):
        pipe.session("a red ball", placement="sequence", devices=2, num_frames=5)


def frames(pipe: wavecore.Pipeline, **options: Any) -> np.ndarray[Any, Any]:
    with pipe.session("a red ball", seed=1, steps=2, num_frames=25, size=(32, 64), **options) as session:
        return np.concatenate([group.frames for group in session])


def test_loaded_so(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    held, plain = frames(wavecore.load("sprites", key_cache="int8")), frames(wavecore.load("sprites"))
    assert not np.array_equal(held, plain)
    assert np.abs(held.astype(int) - plain).mean() < 1
    with pytest.raises(UsageError, match=r"^key_cache: expected .int8. or None, got .int4.$"):
        wavecore.load("sprites", key_cache="int4")  # type: ignore[arg-type]
    arguments = ["--key-cache", "int8", "--steps", "1", "--seconds", "0.5", "--size", "32x32", "--json"]
    output = tmp_path / "out.mp4"
    assert run(["generate", "a red ball", *arguments, "--output-path", str(output)]) == 0
    assert json.loads(capsys.readouterr().out)["frames"] == 8 and output.is_file()
