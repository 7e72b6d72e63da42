"""Kernels compiled ahead of time, without a GPU: what `tools/kernel_report.py` gates."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from kernel_cases import CASES, Case
from kernel_report import inspect, narrow_offsets, roofline

SLOW = [pytest.mark.slow]
EACH = [
    pytest.param(case, target, id=f"{case.name}-sm_{target}", marks=SLOW if target != 90 else [])
    for case in CASES
    for target in case.targets
]


@pytest.mark.parametrize(("case", "target"), EACH)
def test_no_spill_and_the_instructions_promised(case: Case, target: int, tmp_path: Path) -> None:
    row = inspect(case, target, tmp_path)
    assert row.faults == []
    assert row.registers > 0


def test_what_is_missing_is_a_fault(tmp_path: Path) -> None:
    case = next(case for case in CASES if case.name == "rms_norm")
    row = inspect(replace(case, promises={90: ("HGMMA",)}), 90, tmp_path)
    assert row.faults == ["no HGMMA"]
    broken = replace(case, constants=lambda target: {"BLOCK": 1000})  # not a power of two
    (fault,) = inspect(broken, 90, tmp_path).faults
    assert fault.startswith("does not compile: ")


def test_a_stride_multiplied_in_32_bits_is_found() -> None:
    case = next(case for case in CASES if case.name == "rms_norm")
    code = (
        "%a = tt.splat %x_row : i32 -> tensor<4xi32> loc(#a)\n%b = arith.muli %c, %a : tensor<4x{}> loc(#b)"
    )
    assert narrow_offsets(case, code.format("i32")) == ["x_row"]
    assert narrow_offsets(case, code.format("i64")) == []
    assert narrow_offsets(case, code.replace("x_row", "dim").format("i32")) == []


def test_roofline() -> None:
    case = replace(CASES[0], bytes=int(4.8e9), operations={})
    assert roofline(case, 90) == (1000.0, "bytes")
    assert roofline(replace(case, operations={"bf16": 989e12}), 90) == (1e6, "operations")
