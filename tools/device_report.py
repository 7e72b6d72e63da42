"""One run for a machine with a GPU: correctness, speed beside other people's kernels, sanitizer, end to end.

    python tools/device_report.py [--json report.json] [--seconds 480] [--only SECTION]

Lists its plan first. Without a GPU it stops there with exit code 0. No network is used. A section that would
begin after the time is up is left out and named; no timing is given for an operation whose check failed. A
failed check or a finding of the sanitizer makes the exit code 1.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from device_cases import Comparison, checks, comparisons

PLAN = {
    "correctness": "every operation in bfloat16 on the GPU against float64",
    "speed": "operations at the shapes of Wan 1.3B, 480 x 832, beside the peers that are installed",
    "sanitizer": "compute-sanitizer memcheck over the correctness section, when it is installed",
    "end_to_end": "frames a second of Wan 1.3B with random weights, 4 steps, 480 x 832, VAE included",
}
PACKAGES = ("triton", "flash-attn", "flash-attn-3", "sageattention", "flashinfer-python", "vllm")


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


def correctness() -> list[dict[str, Any]]:
    """Error of each operation against float64, and the bound that it has to keep."""
    rows = []
    for check in checks("cuda"):
        try:
            error, bound = check.run()
            rows.append({"op": check.name, "error": error, "bound": bound, "passed": error <= bound})
        except Exception as problem:  # a kernel that does not start is a result too
            rows.append(
                {
                    "op": check.name,
                    "error": None,
                    "passed": False,
                    "problem": f"{type(problem).__name__}: {problem}",
                }
            )
        print(f"  {rows[-1]['op']:34} {'passed' if rows[-1]['passed'] else 'FAILED'}  {rows[-1]}", flush=True)
    return rows


def milliseconds(function: Callable[[], object], repeats: int = 20) -> dict[str, float]:
    """Median and quartiles on the device's own clock, with its second-level cache flushed before each run."""
    flush = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    quartiles = statistics.quantiles(times, n=4)
    return dict(zip(("lower", "median", "upper"), quartiles, strict=True))


def ceilings() -> dict[str, float]:
    """Rates of this device: bfloat16 matrix product in operations, and copy in bytes, a second."""
    a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16)
    source = torch.empty(2**29, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    product = milliseconds(lambda: a @ b)["median"]
    copy = milliseconds(lambda: target.copy_(source))["median"]
    return {"bf16": 2 * 8192**3 / product * 1e3, "bytes": 2 * source.nbytes / copy * 1e3}


def speed(failed: set[str], deadline: float) -> dict[str, Any]:
    """Times beside peers; what the check section found wrong is not timed."""
    limits, rows = ceilings(), []
    for case in comparisons("cuda"):
        if case.op in failed:
            rows.append({"op": case.op, "shape": case.shape, "left_out": "its check failed"})
        elif time.monotonic() > deadline:
            rows.append({"op": case.op, "shape": case.shape, "left_out": "the time was up"})
        else:
            rows.append(compare(case, limits))
        print(f"  {rows[-1]}", flush=True)
    return {"ceilings": limits, "rows": rows}


def compare(case: Comparison, limits: dict[str, float]) -> dict[str, Any]:
    """Ours and each peer in one row."""
    row: dict[str, Any] = {"op": case.op, "shape": case.shape}
    ours = milliseconds(case.ours)
    row["milliseconds"] = ours
    for rate, amount in (("bf16", case.operations), ("bytes", case.bytes)):
        if amount:
            reached = amount / ours["median"] * 1e3
            row[f"{rate}_per_second"] = reached
            row[f"share_of_{rate}_ceiling"] = reached / limits[rate]
    for name, peer in case.peers.items():
        try:
            theirs = milliseconds(peer)
            row[name] = {"milliseconds": theirs, "ratio": theirs["median"] / ours["median"]}
        except Exception as problem:  # a peer that cannot take the shape is said so
            row[name] = {"problem": f"{type(problem).__name__}: {str(problem)[:120]}"}
    return row


def sanitizer(seconds: float) -> dict[str, Any]:
    """compute-sanitizer over the correctness section in a process of its own."""
    tool = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    if not os.path.exists(tool):
        return {"skipped": "compute-sanitizer is not installed"}
    command = [
        tool,
        "--tool",
        "memcheck",
        "--error-exitcode",
        "9",
        sys.executable,
        __file__,
        "--only",
        "correctness",
    ]
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=seconds, check=False
        )
    except subprocess.TimeoutExpired:
        return {"skipped": f"not finished within {seconds:.0f} s"}
    return {"passed": done.returncode == 0, "tail": (done.stdout + done.stderr)[-2000:]}


def end_to_end(seconds: float = 60.0) -> dict[str, Any]:
    """Frames a second of a warm stream on one device."""
    from wavecore.models.bundle import StreamDefaults, StreamModel
    from wavecore.models.dit import WAN_1_3B, CausalWanDiT
    from wavecore.models.wan_vae import WanVAE, WanVAEConfig
    from wavecore.pipeline import Pipeline

    torch.manual_seed(0)
    with torch.device("cuda"):
        dit, vae = CausalWanDiT(WAN_1_3B), WanVAE(WanVAEConfig())
    for module in (dit, vae):
        module.eval().requires_grad_(False)
    features = torch.randn(1, 512, 4096, device="cuda", dtype=torch.bfloat16)
    model = StreamModel(
        "wan-1.3b-random",
        dit.to(torch.bfloat16),
        vae.to(torch.bfloat16),
        lambda prompts: features.expand(len(prompts), -1, -1),
        StreamDefaults(size=(832, 480), fps=16.0, shift=5.0),
    )
    result: dict[str, Any] = {"published_single_gpu_fps": 19.06, "bar_fps": 38.0}
    for rounds in ("wavefront", "sequential"):
        with Pipeline(model).session("random weights", rounds=rounds, steps=4) as session:  # type: ignore[arg-type]
            for _ in range(24):
                next(session)
            torch.cuda.synchronize()
            frames, began = 0, time.monotonic()
            while time.monotonic() - began < seconds / 2:
                frames += len(next(session).frames)
            torch.cuda.synchronize()
            result[rounds] = {"frames_per_second": frames / (time.monotonic() - began), "frames": frames}
        print(f"  {rounds}: {result[rounds]}", flush=True)
    result["peak_gigabytes"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the report here")
    parser.add_argument("--seconds", type=float, default=480.0, help="time for everything")
    parser.add_argument("--only", choices=list(PLAN), help="one section")
    arguments = parser.parse_args()
    sections = [arguments.only] if arguments.only else list(PLAN)
    print("plan:")
    for name in sections:
        print(f"  {name:12} {PLAN[name]}")
    report: dict[str, Any] = {"versions": versions(), "plan": sections}
    if not torch.cuda.is_available():
        report["skipped"] = "no CUDA device: nothing was run"
        print(report["skipped"])
    else:
        run(sections, report, time.monotonic() + arguments.seconds)
    if arguments.json:
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    failed = [row for row in report.get("correctness", []) if not row["passed"]]
    return 1 if failed or report.get("sanitizer", {}).get("passed") is False else 0


def run(sections: list[str], report: dict[str, Any], deadline: float) -> None:
    """Run the sections into the report, as far as the time reaches."""
    with torch.inference_mode():
        for name in sections:
            left = deadline - time.monotonic()
            if left <= 0:
                report[name] = {"left_out": "the time was up"}
                continue
            print(f"{name} ({left:.0f} s left)", flush=True)
            if name == "correctness":
                report[name] = correctness()
            elif name == "speed":
                failed = {row["op"] for row in report.get("correctness", []) if not row["passed"]}
                report[name] = speed(failed, deadline - 60)
            elif name == "sanitizer":
                report[name] = sanitizer(min(120.0, left))
            else:
                report[name] = end_to_end(min(60.0, left))


if __name__ == "__main__":
    sys.exit(main())
