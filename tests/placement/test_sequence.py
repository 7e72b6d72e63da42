"""Tokens split over ranks, against one device."""

import os
import tempfile

import pytest
import torch
import torch.distributed as dist
from support.models import TEXT_DIM, tiny_dit

from wavecore.errors import UsageError
from wavecore.placement.sequence import SequenceParallel, sharded_rms_norm


def clip():
    generator = torch.Generator().manual_seed(2)
    latents = torch.randn(1, 4, 6, 4, 8, generator=generator)
    timesteps = torch.tensor([[1000.0, 1000, 1000, 400, 400, 400]])
    return latents, timesteps, torch.randn(1, 5, TEXT_DIM, generator=generator)


def on_ranks(count, work):
    """What `work` gives on each rank of a gloo group, in processes of their own."""
    folder = tempfile.mkdtemp()
    pids = []
    for rank in range(count):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                torch.set_num_threads(1)
                store = dist.FileStore(f"{folder}/store", count)
                dist.init_process_group("gloo", store=store, rank=rank, world_size=count)
                torch.save(work(), f"{folder}/{rank}")
                code = 0
            finally:
                os._exit(code)
        pids.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * count
    return [torch.load(f"{folder}/{rank}") for rank in range(count)]


@pytest.mark.parametrize("mode", ["ulysses", "ring"])
def test_every_rank_has_the_prediction_of_one_device(mode, one_thread):
    dit = tiny_dit()
    expected = dit.predict(*clip(), attend="causal")
    for result in on_ranks(2, lambda: SequenceParallel(dit, mode).predict(*clip())):
        assert (result - expected).abs().max() <= 1e-5
    assert expected.std() > 0.1


def test_the_norm_over_features_of_all_ranks(one_thread):
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(3))
    weight = torch.arange(1.0, 9.0)
    expected = torch.nn.functional.rms_norm(x, (8,), weight, 1e-6)

    def part():
        here = slice(4 * dist.get_rank(), 4 * dist.get_rank() + 4)
        return sharded_rms_norm(x[:, here], weight[here], 1e-6)

    assert torch.allclose(torch.cat(on_ranks(2, part), -1), expected, atol=1e-6)


def test_a_number_of_ranks_that_does_not_divide(one_thread):
    dit = tiny_dit()

    def refused():
        messages = []
        for mode in ("ulysses", "ring", "spiral"):
            try:
                SequenceParallel(dit, mode).predict(*clip())
            except UsageError as error:
                messages.append(str(error))
        return messages

    messages = on_ranks(3, refused)[0]
    assert messages == [
        "devices: expected a number that divides 2 heads, got 3",
        "devices: expected a number that divides 8 tokens, got 3",
        "mode: expected ulysses or ring, got 'spiral'",
    ]
