"""The tests of the operations on the Triton kernels, in Triton's interpreter.

The interpreter has to be chosen before Triton is imported, hence a process of its own. It multiplies the bit
patterns of bfloat16 numbers, so float32 and float16 stand for every dtype here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
OPS = Path(__file__).parents[1] / "ops"
FILES = (
    "layer_norm_modulate",
    "gate_residual",
    "rms_norm",
    "qkv_page_write",
    "rope_shift",
    "paged_attention",
)


@pytest.mark.parametrize("name", FILES)
def test_operation(name: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            str(OPS / f"test_{name}.py"),
            "-k",
            "triton and not bfloat16 and not thousand and not 32_bits",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
