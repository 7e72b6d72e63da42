from __future__ import annotations

from dataclasses import dataclass, field

import torch

from wavecore.placement.layers.timing import CudaClock, HostClock, LayerTimes, clock_of


@dataclass
class LateClock:
    """A device that is some marks behind, with given times between marks."""

    times: list[float]
    done: int = 0
    given: list[int] = field(default_factory=list)

    def mark(self) -> int:
        self.given.append(len(self.given))
        return self.given[-1]

    def passed(self, mark: int) -> bool:
        return mark < self.done

    def seconds(self, start: int, end: int) -> float:
        assert end < self.done, "read before the device had passed it"
        return self.times[end] - self.times[start]


def run(times: LayerTimes, layers: list[int], batches: int = 1) -> None:
    for _ in range(batches):
        for layer in layers:
            with times.layer(layer):
                pass


def test_a_round_counts_when_the_device_has_done_it() -> None:
    clock = LateClock([0, 1, 1, 3, 10, 15, 15, 15.5])
    times = LayerTimes(clock)
    run(times, [4, 5])
    assert times.end_round(4, 6) == [0, 0]
    run(times, [4, 5])
    clock.done = 4
    assert times.end_round(4, 6) == [1, 2]
    clock.done = 8
    assert times.end_round(4, 6) == [5, 0.5]


def test_batches_of_a_round_add_up() -> None:
    clock = LateClock([0, 1, 1, 3, 10, 15, 15, 15.5], done=8)
    times = LayerTimes(clock)
    run(times, [4, 5], batches=2)
    assert times.end_round(4, 6) == [6, 2.5]


def test_a_layer_that_came_keeps_none_of_the_times_of_one_that_went() -> None:
    clock = LateClock([0, 1, 1, 3, 3, 7], done=4)
    times = LayerTimes(clock)
    run(times, [4, 5])
    times.end_round(4, 6)
    run(times, [6])
    assert times.end_round(5, 7) == [2, 0]
    clock.done = 6
    assert times.end_round(5, 7) == [2, 4]


def test_the_host_knows_at_once() -> None:
    times = LayerTimes(HostClock())
    run(times, [0, 1])
    assert all(seconds > 0 for seconds in times.end_round(0, 2))


def test_events_measure_on_a_gpu() -> None:
    assert isinstance(clock_of(torch.device("cuda")), CudaClock)
    assert isinstance(clock_of(torch.device("cpu")), HostClock)


def test_events_are_on_the_stream_of_the_device_whatever_device_is_current(monkeypatch) -> None:
    recorded = []

    class Event:
        def __init__(self, enable_timing: bool) -> None:
            assert enable_timing

        def record(self, stream: str) -> None:
            recorded.append(stream)

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: f"stream of {device}")
    clock_of(torch.device("cuda:1")).mark()
    assert recorded == ["stream of cuda:1"]
