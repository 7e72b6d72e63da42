"""Signals that ask a program to stop: raised once, and never in the middle of what saves the work."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest

from wavecore.interrupts import SIGNALS, Interrupt, uninterrupted


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """Each signal interrupts here, as it does in the program."""
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_signals_that_come_together_are_one_interrupt() -> None:
    now = 5.0
    interrupt = Interrupt(lambda: now)
    for number in SIGNALS:
        signal.signal(number, interrupt)
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    for number in (*SIGNALS, *SIGNALS):
        signal.raise_signal(number)
    now = 6.0  # what the first was to end goes on: it was lost, or waits for something
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_block_runs_to_its_end(number: signal.Signals) -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        signal.raise_signal(number)
        done.append(1)
        signal.raise_signal(number)
        done.append(2)
    assert done == [1, 2]
    assert signal.getsignal(number) is signal.default_int_handler


def test_an_interrupt_leaves_blocks_within_each_other_together() -> None:
    done = []
    with pytest.raises(KeyboardInterrupt), uninterrupted():
        with uninterrupted():
            signal.raise_signal(signal.SIGINT)
            done.append("inner")
        done.append("outer")
    assert done == ["inner", "outer"]


def test_an_interrupt_during_an_error_is_handled_too() -> None:
    with pytest.raises(KeyboardInterrupt) as raised, uninterrupted():
        signal.raise_signal(signal.SIGINT)
        raise ValueError("a fault")
    assert isinstance(raised.value.__context__, ValueError)


def test_what_python_does_not_handle_stays_as_it_was() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with uninterrupted():
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
        signal.raise_signal(signal.SIGHUP)


def test_handlers_that_raise_nothing_are_called_after_the_block() -> None:
    came: list[str] = []
    signal.signal(signal.SIGTERM, lambda *_: came.append("signal"))
    with uninterrupted():
        os.kill(os.getpid(), signal.SIGTERM)
        came.append("block")
    assert came == ["block", "signal"]


def test_a_block_in_another_thread_changes_no_handler() -> None:
    seen: list[object] = []

    def block() -> None:
        with uninterrupted():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=block)
    thread.start()
    thread.join()
    assert seen == [signal.default_int_handler]
