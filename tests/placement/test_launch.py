"""Processes of the library run the library that started them."""

import signal
import subprocess

import pytest

import wavecore
from wavecore.placement.launch import module_command, start_module


def test_a_package_in_the_working_directory_is_not_taken(tmp_path):
    (tmp_path / "wavecore").mkdir()
    (tmp_path / "wavecore" / "__init__.py").write_text('raise SystemExit("the wrong package")')
    done = subprocess.run(
        [*module_command("wavecore"), "--version"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert wavecore.__version__ in done.stdout


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_signal_of_the_terminal_does_not_reach_a_process_that_is_still_loading(number):
    """As that of Ctrl-C, it comes to the whole group, here before the process has run a line of ours."""
    process = start_module("wavecore", "--version", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.send_signal(number)
    said, complained = process.communicate(timeout=60)
    assert (process.returncode, complained) == (0, b"")
    assert wavecore.__version__ in said.decode()
    assert number not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
