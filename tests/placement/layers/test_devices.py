"""Where the ranks of a ring compute, on GPUs in name."""

from __future__ import annotations

import pytest
import torch
import torch.distributed as dist
from support.models import tiny_dit

from wavecore.errors import UsageError
from wavecore.placement.layers import processes
from wavecore.placement.layers.channel import agree_on_devices, own_device
from wavecore.placement.layers.shard import Shard
from wavecore.placement.layers.timing import CudaClock, HostClock

GPU = torch.device("cuda", 1)


@pytest.fixture
def two_gpus(monkeypatch):
    current = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", current.append)
    return current


def store_of(device):
    store = dist.HashStore()
    agree_on_devices(store, device)
    return store


def test_a_rank_takes_a_gpu_only_where_the_first_one_has_one(two_gpus, monkeypatch):
    """Bodies on a GPU go by NCCL and others by gloo: ranks of both kinds would wait for each other."""
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert own_device(store_of(torch.device("cpu"))) == torch.device("cpu")
    assert two_gpus == []
    assert own_device(store_of(torch.device("cuda"))) == GPU
    assert two_gpus == [GPU]


def test_a_rank_without_a_gpu_where_the_first_has_one(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"^expected a GPU, since the first rank has one, got none$"):
        own_device(store_of(torch.device("cuda")))


def test_ranks_of_one_machine_have_a_gpu_each(two_gpus, monkeypatch):
    """NCCL refuses two ranks on one GPU."""
    numbers = []
    monkeypatch.setattr(
        processes, "start_module", lambda *_, environment, **__: numbers.append(environment["LOCAL_RANK"])
    )
    processes.start_rank(1, 2, 0, local=GPU.index + 1)
    assert numbers == ["2"]
    processes.check_devices(GPU, 2)
    processes.check_devices(torch.device("cpu"), 3)
    with pytest.raises(UsageError, match=r"^devices: expected at most 2 ranks, one .*, got 3$"):
        processes.check_devices(GPU, 3)


def test_layers_that_are_still_to_come_are_measured_where_they_will_be():
    empty = Shard.empty(tiny_dit().config)
    assert isinstance(Shard(empty, 0, 0, GPU)._times._clock, CudaClock)
    assert isinstance(Shard(empty, 0, 0, torch.device("cpu"))._times._clock, HostClock)
