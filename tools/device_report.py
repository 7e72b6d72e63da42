"""One run for a machine with a GPU: correctness, speed beside other people's kernels, end to end, sanitizer.

    python tools/device_report.py [--json report.json] [--seconds 480] [--only SECTION]

Lists its plan first. Without a GPU it stops there with exit code 0. No network is used. Each section runs in
a process of its own (device_sections.py), which is ended when its time is up or when one item takes too long;
where an item breaks the device, another process goes on behind it. What was found is printed, and written to
the file, as it comes. No timing is given for an operation whose check failed. The exit code is 1 when a check
failed, an item could not run, or the sanitizer found something.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from device_processes import Section
from device_sections import operation
from device_summary import bars, line

PLAN = {
    "correctness": "every operation in bfloat16 on the GPU against float64",
    "speed": "operations at the shapes of Wan 1.3B and 14B, 480 x 832, beside PyTorch",
    "end_to_end": "frames a second of Wan 1.3B with random weights, 4 steps, 480 x 832, VAE included",
    "peers": "attention of other packages, where they are installed",
    "sanitizer": "compute-sanitizer memcheck over the correctness section, when it is installed",
}
# Seconds of a section at most, and of one of its items; the sanitizer has what is left.
LIMITS = {"correctness": (180, 80), "speed": (110, 40), "end_to_end": (150, 90), "peers": (60, 40)}
PACKAGES = ("triton", "flash-attn", "flash-attn-3", "sageattention", "flashinfer-python", "vllm")
SECTIONS = Path(__file__).with_name("device_sections.py")


def versions() -> dict[str, str]:
    """What was measured, on what."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "not installed"
    if torch.cuda.is_available():
        found["device"] = torch.cuda.get_device_name(0)
        found["driver_cuda"] = str(torch.version.cuda)
    return found


class Report:
    """What was found so far: printed, and in the file."""

    def __init__(self, file: Path | None, sections: list[str]) -> None:
        self.found: dict[str, Any] = {"versions": versions(), "plan": sections}
        self._file = file
        self.write()

    def write(self) -> None:
        if self._file is None:
            return
        part = self._file.with_suffix(".part")
        part.write_text(json.dumps(self.found, indent=1) + "\n")
        part.replace(self._file)

    def add(self, section: str, item: str, row: dict[str, Any]) -> None:
        self.found.setdefault(section, {})[item] = row
        print(line(item, row, self.found), flush=True)
        self.write()

    @property
    def failed(self) -> list[str]:
        """Items that failed or could not run."""
        return [
            f"{section}: {item}"
            for section in self.found["plan"]
            for item, row in self.found.get(section, {}).items()
            if row.get("passed") is False or "problem" in row
        ]


def sanitizer(seconds: float) -> dict[str, Any]:
    """compute-sanitizer over the correctness section, as far as the time reaches."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        return {"skipped": "compute-sanitizer is not installed"}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "memcheck.log"
        check = [sys.executable, str(SECTIONS), "correctness"]
        # Calls of the driver that fail are no findings: libraries ask so what it can do.
        command = [tool, "--tool", "memcheck", "--report-api-errors", "no", "--log-file", str(log), *check]
        environment = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        rows = list(Section(command, seconds, seconds, 1, environment).rows())
        said = log.read_text(errors="replace") if log.exists() else ""
    done = sum("error" in row for _, row in rows)
    if not done:
        return {"problem": f"no check was done within {seconds:.0f} s: {rows}; {said[-400:]}"}
    findings = [text for text in said.splitlines() if "Invalid" in text or "Misaligned" in text]
    clean = not findings and ("ERROR SUMMARY" not in said or "ERROR SUMMARY: 0 errors" in said)
    return {"passed": clean, "checks_done": done, "checks": len(rows), "tail": said[-1500:]}


def run(report: Report, deadline: float) -> None:
    """Run the sections of the plan, as far as the time reaches."""
    for name in report.found["plan"]:
        left = deadline - time.monotonic()
        print(f"{name} ({left:.0f} s left)", flush=True)
        if left < 5:
            report.add(name, "all", {"left_out": "the time was up"})
            continue
        if name == "sanitizer":
            report.add(name, "memcheck", sanitizer(left))
            continue
        failed = {
            operation(item)
            for item, row in report.found.get("correctness", {}).items()
            if not row.get("passed")
        }
        command = [sys.executable, str(SECTIONS), name]
        if name == "speed":
            command += ["--without", ",".join(failed)]
        most, item_most = LIMITS[name]
        section = Section(command, min(most, left), item_most)
        for item, row in section.rows():
            report.add(name, item, row)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the report here, as it comes")
    parser.add_argument("--seconds", type=float, default=480.0, help="time for everything")
    parser.add_argument("--only", choices=list(PLAN), help="one section")
    arguments = parser.parse_args()
    sections = [arguments.only] if arguments.only else list(PLAN)
    print("plan:")
    for name in sections:
        print(f"  {name:12} {PLAN[name]}")
    report = Report(arguments.json, sections)
    if not torch.cuda.is_available():
        report.found["skipped"] = "no CUDA device: nothing was run"
        report.write()
        print(report.found["skipped"])
        return 0
    print(report.found["versions"], flush=True)
    run(report, time.monotonic() + arguments.seconds)
    report.found["bars"] = bars(report.found)
    for bar in report.found["bars"]:
        print(f"bar: {bar}")
    report.write()
    for name in report.failed:
        print(f"failed: {name}")
    return 1 if report.failed else 0


if __name__ == "__main__":
    sys.exit(main())
