"""Kernels compiled ahead of time, without a GPU: no register spills, and the matrix instructions expected."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

triton = pytest.importorskip("triton")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402

from wavecore.triton_kernels import norm, page_write, paged_attention  # noqa: E402

CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
ALIGNED = re.compile(
    r".*(_slot|_token|_head|_stride|_row|_frame|_page|dim)$"
)  # multiples of 16 in Wan's shapes
BFLOAT16 = (
    *("x", "y", "shift", "scale", "gate", "weight", "out", "q", "k", "v", "q_weight", "k_weight"),
    *("k_pages", "v_pages", "unroped_pages", "q_out", "source", "target"),
)
INT32 = ("page_ids", "unroped_ids", "source_ids", "target_ids", "page_table", "page_lengths")
FLOAT32 = ("rope", "lse")


def machine_code(kernel: Any, constants: dict[str, Any], capability: int, warps: int, folder: Path) -> str:
    """SASS of a kernel for tensors in bfloat16."""
    signature: dict[str, str] = {}
    for name in kernel.arg_names:
        if name in constants:
            signature[name] = "constexpr"
        elif name == "eps" or (name == "scale" and kernel is paged_attention.paged_attention_kernel):
            signature[name] = "fp32"
        elif name in BFLOAT16 + INT32 + FLOAT32:
            element = "bf16" if name in BFLOAT16 else "i32" if name in INT32 else "fp32"
            signature[name] = f"*{element}"
        else:
            signature[name] = "i32"
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(kernel.arg_names)
        if signature[name].startswith("*") or (signature[name] == "i32" and ALIGNED.match(name))
    }
    compiled = triton.compile(
        ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=aligned),
        target=GPUTarget("cuda", capability, 32),
        options={"num_warps": warps, "num_stages": 2, "enable_fp_fusion": True},
    )
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    return subprocess.run([CUOBJDUMP, "-sass", binary], capture_output=True, text=True, check=True).stdout


def assert_no_spill(code: str) -> None:
    assert "EXIT" in code
    assert not re.findall(r"\b(?:LDL|STL)\b", code)


@pytest.mark.parametrize("capability", [80, 90, 100])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_paged_attention(capability: int, head_dim: int, tmp_path: Path) -> None:
    block_m, block_n, block_d, warps = paged_attention.tile_shape(
        1560, 1560, head_dim, torch.bfloat16, capability == 90
    )
    constants = {
        "LSE": True,
        "PRECISION": "tf32",
        "BLOCK_M": block_m,
        "BLOCK_N": block_n,
        "BLOCK_D": block_d,
    }
    code = machine_code(paged_attention.paged_attention_kernel, constants, capability, warps, tmp_path)
    assert_no_spill(code)
    assert {80: "HMMA", 90: "HGMMA", 100: "UTCHMMA"}[capability] in code


@pytest.mark.parametrize(
    ("kernel", "constants"),
    [
        (norm.layer_norm_modulate_kernel, {}),
        (norm.gate_residual_kernel, {}),
        (norm.rms_norm_kernel, {}),
        (page_write.qkv_page_write_kernel, {"UNROPED": True}),
        (page_write.rope_shift_kernel, {}),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
@pytest.mark.parametrize("dim", [1536, 5120])
def test_rows(kernel: Any, constants: dict[str, Any], dim: int, tmp_path: Path) -> None:
    block = triton.next_power_of_2(dim)
    warps = norm.warps(block)
    assert_no_spill(machine_code(kernel, {**constants, "BLOCK": block}, 90, warps, tmp_path))
