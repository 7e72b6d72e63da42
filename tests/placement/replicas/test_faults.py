"""Stages that end, come late or do not fit: one line each, and nothing is left behind."""

import os
import signal
import threading
import time
from dataclasses import replace

import psutil
import pytest
import torch
from support.models import levels_of, run_stream, text_features, tiny_dit
from support.replicas import LATENT, drive, family, segments

from wavecore import __version__
from wavecore.errors import UsageError, WavecoreError
from wavecore.placement import protocol
from wavecore.placement.nursery import Nursery
from wavecore.placement.replica_options import check_hellos
from wavecore.placement.replicas import ReplicaOptions, Replicas
from wavecore.rounds import Sequential, StageMap, Wavefront, wavefront

RULES = Wavefront(steps=2)
MAP = StageMap(3, 3)


def endless(replicas, dit):
    """Run a stream until it fails; returns the error."""
    text = dit.encode_text(text_features())
    stream = replicas.stream(RULES, levels_of(2), 0)
    deadline = time.monotonic() + 30
    with pytest.raises(WavecoreError) as error:
        while time.monotonic() < deadline:
            while stream.wants_chunk:
                stream.enter(0, text)
            stream.take()
            yield_to = getattr(replicas, "victim", None)
            if yield_to is not None and stream.taken == 3:
                os.kill(yield_to, signal.SIGKILL)
                replicas.victim = None
    return str(error.value)


def test_replicas_without_the_native_module_do_not_start(monkeypatch, dit):
    monkeypatch.setattr("wavecore.placement.replicas.find_spec", lambda name: None)
    with pytest.raises(UsageError, match="placement: expected the native module for replicas"):
        Replicas(dit, RULES, LATENT, ReplicaOptions(ranks=3))


@pytest.mark.parametrize("transport", ["shared", "gloo"])
@pytest.mark.parametrize("victim", [0, 1, 2])
def test_a_rank_that_is_killed_ends_all_others_and_is_named(dit, nursery, transport, victim):
    before = segments(family())
    options = ReplicaOptions(ranks=3, transport=transport, timeout=30)
    replicas = Replicas(dit, RULES, LATENT, options, nursery=nursery)
    with replicas:
        processes = family()
        assert processes >= set(replicas.pids)
        replicas.victim = replicas.pids[victim]
        message = endless(replicas, dit)
        name = "store" if victim == 2 else f"stage {victim}"
        assert message == f"rank {victim} ({name}), process {replicas.pids[victim]}: it was ended by SIGKILL"
        deadline = time.monotonic() + 10
        while any(map(psutil.pid_exists, replicas.pids)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert all(how != "it ended with exit code 0" for how in replicas._exited.values())
        with pytest.raises(WavecoreError, match=r"SIGKILL"):
            replicas.stream(RULES, levels_of(2), 0)
    assert segments(processes) <= before


@pytest.mark.parametrize(
    ("ranks", "names"),
    [
        (2, ("rank 0 (stages in turn)", "rank 1 (stages in turn)")),
        (((0, 2), (1,)), ("rank 0 (stage 0 and store)", "rank 1 (stage 1)")),
    ],
    ids=str,
)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_of_several_stages_that_is_killed_is_named(dit, nursery, ranks, names, victim):
    options = ReplicaOptions(ranks=ranks, timeout=30)
    with Replicas(dit, RULES, LATENT, options, nursery=nursery) as replicas:
        replicas.victim = replicas.pids[victim]
        message = endless(replicas, dit)
        assert message == f"{names[victim]}, process {replicas.pids[victim]}: it was ended by SIGKILL"


def test_a_rank_whose_device_fails_says_why(dit, nursery, monkeypatch):
    """As one whose device has no memory left: what PyTorch raises is no error of this library."""
    monkeypatch.setattr(ReplicaOptions, "devices_for", lambda *_: ("cpu", "cuda:99"))
    with pytest.raises(WavecoreError, match=r"^rank 1 \(stages in turn\), process \d+: \w+Error: .*CUDA"):
        Replicas(dit, RULES, LATENT, ReplicaOptions(ranks=2, timeout=30), nursery=nursery)


def test_the_next_ranks_of_a_nursery_are_not_touched(dit, nursery):
    options = ReplicaOptions(ranks=2, timeout=30)
    with Replicas(dit, RULES, LATENT, options, nursery=nursery) as replicas:
        replicas.victim = replicas.pids[1]
        endless(replicas, dit)
        with Replicas(dit, RULES, LATENT, options, nursery=nursery) as others:
            expected, _ = run_stream(dit, wavefront(2, 4), levels_of(2), "slots")
            assert all(map(torch.equal, drive(others, dit, RULES, 4), expected))


def test_stages_end_with_the_process_of_the_session(dit):
    """The nursery's parent is gone: so are all that it has started."""
    nursery = Nursery(dit)
    replicas = Replicas(dit, RULES, LATENT, ReplicaOptions(timeout=30), nursery=nursery)
    pids = [*replicas.pids, nursery._process.pid]
    nursery._socket.shutdown(2)  # what the kernel does when a process ends
    nursery._process.wait(10)
    deadline = time.monotonic() + 10
    while any(map(psutil.pid_exists, pids)) or not replicas.failed:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    replicas.close()
    nursery.close()


def test_a_nursery_that_is_killed_is_named_with_the_rank_that_ended_with_it(dit):
    options = ReplicaOptions(ranks=2, timeout=30)
    with Nursery(dit) as nursery, Replicas(dit, RULES, LATENT, options, nursery=nursery) as replicas:
        number = nursery._process.pid
        replicas.victim = number
        loader = f"the process that starts the ranks, {number}: it was ended by SIGKILL"
        rank = replicas.pids[0]
        assert endless(replicas, dit) == f"rank 0 (stages in turn), process {rank}: it ended with {loader}"
        with pytest.raises(WavecoreError, match=f"^{loader}$"):
            Replicas(dit, RULES, LATENT, options, nursery=nursery)


def test_a_nursery_that_is_killed_before_it_has_started_any_rank_is_named(dit):
    with Nursery(dit) as nursery:
        nursery._process.kill()
        with pytest.raises(
            WavecoreError, match=r"^the process that starts the ranks, \d+: it was ended by SIGKILL$"
        ):
            Replicas(dit, RULES, LATENT, ReplicaOptions(ranks=2, timeout=30), nursery=nursery)


def test_stages_end_when_they_are_closed(dit, nursery):
    replicas = Replicas(dit, RULES, LATENT, ReplicaOptions(timeout=30), nursery=nursery)
    drive(replicas, dit, RULES, 2)
    replicas.close()
    assert not any(map(psutil.pid_exists, replicas.pids))
    with pytest.raises(UsageError, match="expected open replicas"):
        replicas.stream(RULES, levels_of(2), 0)


def test_a_stage_that_stands_still_is_named_by_the_one_that_waits(dit, nursery):
    options = ReplicaOptions(ranks=3, timeout=1.0)
    with Replicas(dit, RULES, LATENT, options, nursery=nursery) as replicas:
        os.kill(replicas.pids[1], signal.SIGSTOP)
        try:
            message = endless(replicas, dit)
        finally:
            os.kill(replicas.pids[1], signal.SIGCONT)
    assert "stage 1" in message and "within 1 s, it did not" in message


def test_a_long_prompt_does_not_wait_for_a_rank_that_is_at_work(dit, nursery):
    """As standing still is to the others: it reads nothing, and takes what is sent once it goes on."""
    short, long = (dit.encode_text(text_features().repeat(1, times, 1)) for times in (1, 4000))
    stuck = threading.Event()
    with Replicas(dit, RULES, LATENT, ReplicaOptions(timeout=60), nursery=nursery) as replicas:
        stream = replicas.stream(RULES, levels_of(2), 0, 2)
        stream.enter(0, short)
        for pid in replicas.pids:
            os.kill(pid, signal.SIGSTOP)

        def go_on():
            for pid in replicas.pids:
                os.kill(pid, signal.SIGCONT)

        rescue = threading.Timer(30, lambda: (stuck.set(), go_on()))
        rescue.start()
        try:
            stream.enter(1, long)
            assert not stuck.is_set()
        finally:
            rescue.cancel()
            go_on()
        assert [stream.take()[0] for _ in range(2)] == [0, 1]


def test_a_stage_that_does_not_come_is_named(dit, nursery, monkeypatch):
    monkeypatch.setattr(Replicas, "_listen", lambda *_: None)
    with pytest.raises(WavecoreError, match=r"rank 0 \(stage 0\): expected it within 0.3 s, it did not come"):
        Replicas(dit, RULES, LATENT, ReplicaOptions(ranks=3, timeout=0.3), nursery=nursery)


def hello(rank, **other):
    return replace(protocol.Hello(rank, 1, __version__, "ab", b"", 0), **other)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"version": "0.0.9"}, rf"rank 1 \(stage 1\): expected wavecore {__version__}, got 0\.0\.9"),
        ({"checksum": "cd"}, r"rank 1 \(stage 1\): expected weights with checksum ab, got cd"),
    ],
)
def test_ranks_of_another_version_or_checkpoint(other, message):
    check_hellos([hello(0), hello(1), hello(2)], MAP, "ab")
    with pytest.raises(WavecoreError, match=message):
        check_hellos([hello(0), hello(1, **other), hello(2)], MAP, "ab")


def test_checksum_sees_every_weight():
    dit, other = tiny_dit(), tiny_dit()
    assert protocol.checksum(dit) == protocol.checksum(other)
    other.blocks[1].ffn[2].bias.data[3] += 1e-6
    assert protocol.checksum(dit) != protocol.checksum(other)


def test_memory_of_a_dead_run_is_not_taken_for_that_of_this_one():
    from wavecore._native import HostDriver

    driver = HostDriver()
    handle = driver.share(driver.allocate(4096))
    del driver
    with pytest.raises(WavecoreError, match="it is gone, since that process has ended"):
        HostDriver().open(handle)


def test_memory_that_is_not_there_is_an_error():
    import resource

    from wavecore._native import HostDriver

    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(
            WavecoreError, match="shared memory: expected 4194304 bytes, got none: File too large"
        ):
            HostDriver().allocate(4 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("rules", "options", "message"),
    [
        (Sequential(steps=2), {}, "rounds: expected wavefront for replicas, got sequential"),
        (RULES, {"mode": "late"}, "mode: expected one of sync, early, paged, got 'late'"),
        (RULES, {"transport": "pigeon"}, "transport: expected one of shared, gloo, got 'pigeon'"),
        (RULES, {"ranks": 4}, "ranks: expected 1 to 3, one a stage and one for the store, got 4"),
        (RULES, {"ranks": [[0, 1], [1, 2]]}, r"ranks: expected each stage from 0 to 2 once, got 0 1 \| 1 2"),
        (
            RULES,
            {"ranks": [[0, 1], [2], []]},
            r"ranks: expected each stage from 0 to 2 once, got 0 1 \| 2 \| ",
        ),
        (RULES, {"generations": 0}, "generations: expected a whole number of at least 1, got 0"),
        (RULES, {"timeout": 0}, "timeout: expected a finite number above 0, got 0"),
        (RULES, {"timeout": float("inf")}, "timeout: expected a finite number above 0, got inf"),
    ],
)
def test_what_cannot_work_is_said_before_anything_starts(dit, rules, options, message):
    with pytest.raises(UsageError, match=message):
        Replicas(dit, rules, LATENT, ReplicaOptions(**options))


def test_a_stream_that_needs_more_pages_than_there_are(dit, nursery):
    options = ReplicaOptions(ranks=3, timeout=30)
    with Replicas(dit, RULES, LATENT, options, nursery=nursery) as replicas:
        with pytest.raises(
            UsageError, match=r"stream: expected at most \d+ pages at rank 0 \(stage 0\), got"
        ):
            replicas.stream(Wavefront(steps=2, history=20), levels_of(2), 0)
        with pytest.raises(UsageError, match="stream: expected 2 steps"):
            replicas.stream(Wavefront(steps=1), levels_of(1), 0)
