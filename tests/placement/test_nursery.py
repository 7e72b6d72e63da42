"""Processes that are copies of a loaded one."""

import os
import signal
import subprocess
import sys

from wavecore.placement.nursery import _reap


def test_who_was_ended_by_a_signal_is_named_before_those_that_missed_it():
    ended = [
        subprocess.Popen([sys.executable, "-S", "-c", f"import os; {how}"])
        for how in ("os._exit(1)", "os.kill(os.getpid(), 9)", "os._exit(2)")
    ]
    reaped = _reap({process.pid for process in ended})
    assert reaped[0][0] == ended[1].pid and os.WTERMSIG(reaped[0][1]) == signal.SIGKILL
    assert {pid for pid, _ in reaped[1:]} == {ended[0].pid, ended[2].pid}
    for process in ended:  # waited for already
        process.returncode = 0
