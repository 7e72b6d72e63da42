from __future__ import annotations

import pickle

import pytest
from torch import nn

from wavecore.placement.layers.codec import packed
from wavecore.transfer import on_host


def test_a_module_on_a_device_is_sent_as_a_copy_in_the_memory_of_the_host(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The device is "meta" here, from which PyTorch copies nothing."""
    monkeypatch.setattr(nn.Module, "cpu", lambda module: module.to_empty(device="cpu"))
    here, there = nn.BatchNorm1d(2), nn.BatchNorm1d(2, device="meta")
    assert on_host(here) is here
    copied = on_host(there)
    for tensors in (copied.parameters(), copied.buffers()):
        assert {tensor.device.type for tensor in tensors} == {"cpu"}
    assert there.weight.device.type == "meta"
    received = pickle.loads(packed(there).numpy().tobytes())  # type: ignore[arg-type]
    assert received.weight.device.type == "cpu"
