"""Sessions that nobody closes: their processes and threads end when they are garbage-collected."""

import gc
import threading
import weakref

import psutil
import pytest
from support.models import tiny_stream_model

from wavecore.interactive.speculation import Speculation
from wavecore.lifetime import Belongings, weakly
from wavecore.pipeline import Pipeline


class Owner:
    def __init__(self):
        self.belongings = Belongings(self)
        self.calls = []

    def call(self, value):
        self.calls.append(value)


@pytest.fixture(scope="module")
def pipe():
    return Pipeline(tiny_stream_model())


def test_belongings_end_once_the_last_first():
    owner, ended = Owner(), []
    owner.belongings.add(lambda: ended.append("first"))
    owner.belongings.add(lambda: ended.append("last"))
    owner.belongings.close()
    assert ended == ["last", "first"]
    owner.belongings.close()
    del owner
    assert ended == ["last", "first"]


def test_belongings_end_with_an_owner_that_is_dropped_in_another_thread():
    owner, ended, over = Owner(), [], threading.Event()
    lock = threading.Lock()

    def end():
        with lock:
            ended.append(threading.current_thread())
        over.set()

    owner.belongings.add(end)
    with lock:
        del owner  # would wait forever here
    assert over.wait(60)
    assert ended != [threading.current_thread()]


def test_one_that_fails_keeps_no_other_from_ending():
    owner, ended = Owner(), []
    owner.belongings.add(lambda: ended.append("other"))
    owner.belongings.add(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        owner.belongings.close()
    assert ended == ["other"]


def test_a_weak_method_does_not_keep_its_object():
    owner = Owner()
    calls, call, alive = owner.calls, weakly(owner.call), weakref.ref(owner)
    call(1)
    del owner
    assert alive() is None
    call(2)
    assert calls == [1]


def children():
    return set(psutil.Process().children(recursive=True))


SPECULATIVE = {"control": "speculative", "speculation": Speculation(latents=3, pacing="virtual")}


@pytest.mark.parametrize(
    "options",
    [
        {"placement": "replicas", "devices": 2},
        {"placement": "layers", "rounds": "stream_batch"},
        pytest.param({"placement": "sequence"}, marks=pytest.mark.slow),
        pytest.param({"placement": "replicas", "devices": 1, "decoders": 1}, marks=pytest.mark.slow),
        pytest.param({"decoders": 1}, marks=pytest.mark.slow),
        pytest.param({"placement": "replicas", "devices": 2, **SPECULATIVE}, marks=pytest.mark.slow),
        pytest.param({"placement": "layers", **SPECULATIVE}, marks=pytest.mark.slow),
    ],
    ids=lambda options: "-".join(str(v) for k, v in options.items() if k != "speculation"),
)
def test_processes_of_a_loop_that_was_left_end(pipe, options):
    before = children()
    for _ in pipe.session("a red ball", steps=2, **options):
        started = children() - before
        break
    assert started
    del _
    gc.collect()
    assert not psutil.wait_procs(started, timeout=60)[1]


@pytest.mark.parametrize("pacing", ["real", "virtual"])
def test_a_speculative_session_that_was_dropped_ends(pipe, pacing):
    before = set(threading.enumerate())
    session = pipe.session(
        "a red ball", steps=2, control="speculative", speculation=Speculation(latents=3, pacing=pacing)
    )
    next(session)
    ticket, alive = session.update("a blue star"), weakref.ref(session)
    del session
    assert alive() is None
    assert ticket.result(60).outcome == "lost"
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive(), thread
