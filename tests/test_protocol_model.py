"""The flag and credit protocol, checked in every interleaving by spin (Debian package `spin`)."""

import shutil
import subprocess
from pathlib import Path

import pytest

MODEL = Path(__file__).parents[1] / "tools" / "wave.pml"

pytestmark = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="spin and a C compiler are needed (Debian package spin)",
)


def check(folder, *defines):
    """Output of an exhaustive search."""
    subprocess.run(["spin", *defines, "-a", MODEL], cwd=folder, check=True, capture_output=True)
    flags = ["-O2", "-DSAFETY", "-DVECTORSZ=2048", "-DCOLLAPSE"]
    subprocess.run(["cc", *flags, "-o", "pan", "pan.c"], cwd=folder, check=True, capture_output=True)
    command = ["./pan", "-m1000000", "-w24"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300).stdout


@pytest.mark.parametrize("defines", [(), ("-DRANKS=2",)], ids=["a rank a stage", "in turn"])
def test_no_torn_page_and_no_deadlock_with_a_crash_anywhere(tmp_path, defines):
    output = check(tmp_path, *defines)
    assert "errors: 0" in output and "max search depth too small" not in output


def test_without_credits_a_page_is_overwritten_while_it_is_read(tmp_path):
    """Where ranks have stages of their own; two that take turns wait for each other in every tick anyway."""
    output = check(tmp_path, "-DNO_CREDITS")
    assert "errors: 1" in output and "assertion violated" in output
