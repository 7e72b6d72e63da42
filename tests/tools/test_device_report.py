from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU the report runs in full")
def test_without_a_gpu_it_lists_its_plan_and_stops(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, str(TOOLS / "device_report.py"), "--json", str(out)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "plan:" and lines[-1] == "no CUDA device: nothing was run"
    sections = [line.split()[0] for line in lines[1:-1]]
    assert sections == ["correctness", "speed", "sanitizer", "end_to_end"]
    report = json.loads(out.read_text())
    assert report["plan"] == sections and report["versions"]["torch"] == torch.__version__


def test_the_checks_pass_on_the_cpu_and_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks, on the device that every machine has."""
    monkeypatch.syspath_prepend(str(TOOLS))
    import device_cases

    from wavecore import ops

    checked = {check.name: check.run() for check in device_cases.checks("cpu")}
    assert len(checked) >= 13
    assert {name: pair for name, pair in checked.items() if not pair[0] <= pair[1]} == {}
    monkeypatch.setattr(ops, "rms_norm", lambda x, weight, eps: x * 1.01)
    wrong = next(check for check in device_cases.checks("cpu") if check.name == "rms_norm")
    error, bound = wrong.run()
    assert error > bound
