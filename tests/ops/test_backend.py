from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from support.ops import Context, error

from wavecore import ops
from wavecore.errors import UsageError
from wavecore.ops.backend import Backends


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run Python code in a process of its own, on the installed package and not on the working folder."""
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=os.path.dirname(__file__),
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_backend_that_runs_agrees() -> None:
    arguments = Context([[16, 5], [0, 0]]).arguments()
    try:
        results = []
        for name in ops.BACKENDS:
            if name != "auto" and ops.unavailable(name, "cpu"):
                continue
            ops.set_backend(name)
            assert ops.backend() == name
            results.append(ops.paged_attention(*arguments))
    finally:
        ops.set_backend("auto")
    assert len(results) >= 3
    assert all(error(result, results[0]) <= 1e-5 for result in results)


def test_an_unknown_backend_is_an_error_and_changes_nothing() -> None:
    with pytest.raises(UsageError, match=r"^backend: expected one of auto, native, .*, got 'cuda'$"):
        ops.set_backend("cuda")
    assert ops.backend() == "auto"


def test_a_forced_backend_that_cannot_run_says_why() -> None:
    backends = Backends("native", None)
    tensor = torch.empty(1, device="meta")
    with pytest.raises(UsageError, match=r"^backend: native cannot run on meta: it holds CPU kernels only$"):
        backends.of(tensor)
    assert Backends("auto", None).unavailable("native", "cuda") == "it holds CPU kernels only"
    assert ops.unavailable("native", torch.device("cuda:1")) == "it holds CPU kernels only"
    assert ops.unavailable("auto", "cpu") is None
    with pytest.raises(UsageError, match=r"^name: expected one of auto, native, .*, got 'cudnn'$"):
        ops.unavailable("cudnn", "cpu")
    if "TRITON_INTERPRET" not in os.environ:
        with pytest.raises(UsageError, match=r"^backend: triton cannot run on cpu: Triton needs a GPU"):
            Backends("triton", None).of(torch.empty(1))


def test_environment_selects_backend_and_instruction_set() -> None:
    pytest.importorskip("wavecore._native")
    code = (
        "import torch; from wavecore import ops; ops.rms_norm(torch.ones(2), torch.ones(2), 0.0)\n"
        "from wavecore.ops import native; print(ops.backend(), native.instruction_set())"
    )
    done = run(code, WAVECORE_BACKEND="native", WAVECORE_CPU="portable")
    assert done.stdout == "native portable\n", done.stderr


def test_an_unknown_backend_in_the_environment_is_an_error() -> None:
    done = run("from wavecore import ops", WAVECORE_BACKEND="fast")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "wavecore.errors.UsageError: WAVECORE_BACKEND: expected one of auto,"
    )


def test_without_the_native_module_pytorch_takes_over() -> None:
    code = (
        "import sys; sys.modules['wavecore._native'] = None\n"
        "import torch; from wavecore import ops\n"
        "assert ops.unavailable('native', 'cpu')\n"
        "x = torch.randn(2, 3, 4); print(ops.rms_norm(x, torch.ones(4), 1e-6).shape)\n"
    )
    done = run(code)
    assert done.stdout == "torch.Size([2, 3, 4])\n", done.stderr
