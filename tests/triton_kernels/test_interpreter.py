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
TESTS = Path(__file__).parents[1]
FILES = (
    "ops/test_layer_norm_modulate.py",
    "ops/test_gate_residual.py",
    "ops/test_rms_norm.py",
    "ops/test_gelu.py",
    "ops/test_linear.py",
    "ops/test_renoise_step.py",
    "ops/test_qkv_page_write.py",
    "ops/test_rope_shift.py",
    "ops/test_paged_attention.py",
    "ops/test_quantize_tokens.py",
    "ops/test_int8_linear.py",
    "ops/test_paged_attention_int8.py",
    "ops/test_float8_values.py",
    "triton_kernels/test_paged_attention_tma.py",
    "triton_kernels/test_int8_linear_tma.py",
)


@pytest.mark.parametrize("name", FILES)
def test_operation(name: str) -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            str(TESTS / name),
            "-k",
            "triton and not bfloat16 and not thousand and not 32_bits",
        ],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
