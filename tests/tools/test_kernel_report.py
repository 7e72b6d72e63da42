"""What `tools/kernel_report.py` says where it cannot begin; what it reports is tested beside the kernels."""

import runpy
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "kernel_report.py"


def test_without_triton_it_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.setattr(sys, "path", list(sys.path))  # the tool adds its folder
    with pytest.raises(SystemExit, match="kernel_report: expected Triton"):
        runpy.run_path(str(TOOL))


def test_a_target_that_is_none_is_named(monkeypatch, capsys):
    pytest.importorskip("triton")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["kernel_report.py", "--targets", "80,42"])
    with pytest.raises(SystemExit, match="2"):
        runpy.run_path(str(TOOL), run_name="__main__")
    assert "--targets: expected some of 80, 90, 100, got '42'" in capsys.readouterr().err
