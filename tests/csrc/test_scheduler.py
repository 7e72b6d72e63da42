"""The stream scheduler in C++ under the thread sanitizer, on the host and on a fake CUDA driver."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    ROOT / "csrc/scheduler" / f"{name}.cpp"
    for name in ("host_driver", "host_stream", "cuda_driver", "scheduler")
]
COMPILER = shutil.which("g++") or shutil.which("clang++")

pytestmark = pytest.mark.skipif(COMPILER is None, reason="no C++ compiler")


def compile_to(output, sources, *flags):
    command = [COMPILER, "-std=c++17", "-O1", "-g0", "-Wall", "-Wextra", "-pthread", f"-I{ROOT / 'csrc'}"]
    subprocess.run([*command, *flags, *map(str, sources), "-o", str(output), "-ldl"], check=True)
    return output


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Test program and fake driver, with the thread sanitizer."""
    folder = tmp_path_factory.mktemp("scheduler")
    here = Path(__file__).parent
    sanitizer = "-fsanitize=thread"
    program = compile_to(folder / "test", [here / "scheduler_test.cpp", *SOURCES], sanitizer)
    fake = compile_to(folder / "libfake.so", [here / "fake_cuda.cpp"], sanitizer, "-shared", "-fPIC")
    return program, fake


def run(*command, **environment):
    return subprocess.run(
        [*map(str, command)], capture_output=True, text=True, timeout=500, env=os.environ | environment
    )


def test_host_and_cuda_drivers_under_the_thread_sanitizer(built):
    result = run(*built)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


def test_without_credits_pages_are_overwritten(built):
    """The sanitizer is silenced: what it would report is what the checker has to find by itself."""
    result = run(*built, "mutations", TSAN_OPTIONS="report_bugs=0")
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr


@pytest.mark.slow
def test_ten_thousand_rounds_with_pauses_on_every_edge(built):
    result = run(*built, "stress", 10_000)
    assert (result.returncode, result.stdout) == (0, "ok\n"), result.stderr
