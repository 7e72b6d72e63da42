from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from support.pretended_device import PretendedDevice

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import device_checks
import device_replicas
import device_stream
import device_timings
from device_processes import Section
from device_summary import bars, line

from wavecore import ops
from wavecore.models.dit import WAN_1_3B
from wavecore.models.wan_vae import WanVAEConfig

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
    assert sections == ["correctness", "speed", "end_to_end", "peers", "sanitizer"]
    report = json.loads(out.read_text())
    assert report["plan"] == sections and report["versions"]["torch"] == torch.__version__


def test_the_checks_pass_on_the_cpu_and_find_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same checks, on the device that every machine has."""
    checked = {check.name: check.run() for check in device_checks.checks("cpu")}
    assert len(checked) >= 25
    assert {name: pair for name, pair in checked.items() if not pair[0] <= pair[1]} == {}
    monkeypatch.setattr(ops, "rms_norm", lambda x, weight, eps: x * 1.01)
    wrong = next(check for check in device_checks.checks("cpu") if check.name == "rms_norm")
    error, bound = wrong.run()
    assert error > bound


def test_waves_over_processes_agree() -> None:
    row = device_replicas.replicas_agree(("cpu", "cpu"))
    assert row["passed"], row


# -- on a device in name -----------------------------------------------------------------


class Event:
    """A CUDA event, by the host's clock."""

    def __init__(self, enable_timing: bool = False) -> None:
        self.at = 0.0

    def record(self) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Event) -> float:
        return (end.at - self.at) * 1e3


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Tensors on "cuda" in host memory; PyTorch's own errors for what mixes devices."""
    monkeypatch.setattr(torch.cuda, "Event", Event)
    for name in ("synchronize", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda *_: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda *_: 0)
    with torch.inference_mode(), PretendedDevice():
        yield


def test_checks_and_timings_keep_to_one_device(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "Stream", lambda: None)
    checks = {check.name: check for check in device_checks.checks("cuda")}
    only_there = {name for name in checks if name.startswith(("on a", "in a", "offsets"))}
    assert len(only_there) == 4
    for name in set(checks) - only_there:
        error, bound = checks[name].run()
        assert error <= bound, name
    monkeypatch.setattr(device_timings, "SECONDS", 0.0)
    monkeypatch.setattr(device_timings, "FLUSHED", 8)
    shape = device_timings.Shape("small", heads=2, ffn=96, head_dim=32, frame_tokens=16, pages=4)
    seen = [device_timings.compare(case) for case in device_timings.comparisons("cuda", (shape,))]
    assert len(seen) == 12
    for row in seen:
        assert row["milliseconds"]["median"] > 0
        assert [peer for peer in row.values() if isinstance(peer, dict) and "problem" in peer] == []
    assert set(device_timings.ceilings(size=32, elements=64)) == {"bf16", "int8", "bytes"}


SMALL = device_stream.Workload(
    dit=replace(WAN_1_3B, dim=48, heads=2, layers=1, ffn_dim=64, text_dim=16),
    vae=WanVAEConfig(base_dim=4, num_res_blocks=1),
    size=(32, 32),
    words=8,
    warm_up_seconds=0.0,
    seconds=0.3,
)


@pytest.mark.parametrize("name", device_stream.STREAMS)
def test_streams_run_end_to_end(device: Any, name: str) -> None:
    row = device_stream.frames_per_second(name, SMALL)
    assert row["frames"] > 0 and row["frames_per_second"] > 0


# -- processes ---------------------------------------------------------------------------

CHILD = """
import sys, time
sys.path.insert(0, {tools!r})
import device_sections as s
def ends():
    print("about to end", file=sys.stderr)
    raise SystemExit(7)
def breaks():
    s.device_works = lambda: False
    raise RuntimeError("an illegal memory access was encountered")
def hangs():
    time.sleep(600)
s.device_works = lambda: True
items = {{"good": lambda: {{"passed": True}}, "rms_norm (wide)": dict, "raises": lambda: 1 / 0, {items}}}
sys.exit(s.run(items, int(sys.argv[2]), {{"rms_norm"}}))
"""


def rows(items: str, seconds: float = 60.0, item_seconds: float = 30.0) -> dict[str, dict[str, Any]]:
    command = [sys.executable, "-c", CHILD.format(tools=str(TOOLS), items=items)]
    return dict(Section(command, seconds, item_seconds).rows())


def test_an_item_that_ends_or_breaks_its_process_costs_no_other() -> None:
    found = rows('"ends": ends, "breaks": breaks, "last": lambda: {"passed": True}')
    assert found["good"] == found["last"] == {"passed": True}
    assert found["rms_norm (wide)"] == {"left_out": "its check failed"}
    assert found["raises"] == {"problem": "ZeroDivisionError: division by zero"}
    assert found["ends"] == {"problem": "the process ended with code 7: about to end"}
    assert found["breaks"] == {"problem": "RuntimeError: an illegal memory access was encountered"}


def test_an_item_that_hangs_is_ended_and_the_time_of_a_section_is_kept() -> None:
    found = rows('"hangs": hangs, "last": lambda: {}', item_seconds=2.0)
    assert found["hangs"] == {"problem": "no result within 2 s"} and found["last"] == {}
    found = rows('"hangs": hangs, "last": lambda: {}', seconds=3.0)
    assert any(row.get("problem", "").startswith("no result within ") for row in found.values())
    assert found.get("last", {"left_out": ""}).keys() == {"left_out"}  # not known when it started too late


def test_a_section_that_cannot_start_is_a_problem() -> None:
    (row,) = Section([sys.executable, "-c", "import no_such_module"], 60.0, 30.0).rows()
    assert row[0] == "start" and "No module named 'no_such_module'" in row[1]["problem"]


def test_bars_and_lines() -> None:
    speed = {
        "ceilings": {"bf16": 800e12, "int8": 1500e12, "bytes": 4e12},
        "paged_attention (1.3B)": {
            "op": "paged_attention",
            "milliseconds": {"median": 1.0},
            "operations_per_second": 600e12,
        },
        "int8_linear (1.3B)": {
            "op": "int8_linear",
            "milliseconds": {"median": 1.0},
            "operations_per_second": 900e12,
            "linear_bf16": {"ratio": 1.2},
            "int_mm_eager": {"problem": "RuntimeError: no"},
        },
    }
    found = {"speed": speed, "end_to_end": {"wavefront": {"frames_per_second": 40.0}}}
    assert [(bar["reached"], bar["met"]) for bar in bars(found)] == [(0.75, True), (1.2, False), (40.0, True)]
    text = line("int8_linear (1.3B)", speed["int8_linear (1.3B)"], found)
    assert "60% of int8" in text and "linear_bf16 1.20x" in text and "int_mm_eager: RuntimeError" in text
    assert "PROBLEM  lost" in line("x", {"problem": "lost"}, found)
