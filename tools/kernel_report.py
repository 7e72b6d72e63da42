"""Compile every Triton kernel ahead of time, without a GPU, and report what it became.

    python tools/kernel_report.py [--json report.json] [--only NAME] [--targets 80,90,100]

For each kernel at the shapes of Wan 1.3B: registers, spills, shared memory, counts of matrix and TMA
instructions, and how long it must take by a count of bytes and operations. Exits with 1 when a kernel spills,
does not fit into shared memory, multiplies a stride in 32 bits, or lacks an instruction that it was promised.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
try:
    import triton
except ImportError:
    sys.exit(
        "kernel_report: expected Triton, which compiles the kernels (pip install 'wavecore[gpu]'), got none"
    )
from kernel_cases import CASES, Case
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from wavecore.triton_kernels.launch import VARIES_IN_ALIGNMENT

BINARIES = Path(triton.__file__).parent / "backends/nvidia/bin"
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024}
# Dense rates and bandwidth of an A100, an H200 and a B200, in operations and bytes a second.
RATES = {
    80: {"bf16": 312e12, "int8": 624e12, "bytes": 2.0e12},
    90: {"bf16": 989e12, "int8": 1979e12, "float8": 1979e12, "bytes": 4.8e12},
    100: {"bf16": 2250e12, "int8": 4500e12, "float8": 4500e12, "bytes": 8.0e12},
}
# Strides among the arguments, and lines of Triton's intermediate code that pass them on or multiply.
STRIDE = re.compile(r"(?<!per)_(slot|token|head|page|stride|row|frame)$")
MADE = re.compile(
    r"%(\w+) = (tt\.splat|tt\.broadcast|tt\.expand_dims|arith\.muli) ([^\n:{]*)[^\n:]*: ([^\n]*) loc"
)
COUNTED = ("HMMA", "IMMA", "HGMMA", "IGMMA", "QGMMA", "UTCHMMA", "UTCIMMA", "UTCQMMA", "UTMALDG", "LDGSTS")


@dataclass
class Row:
    """One kernel on one target."""

    kernel: str
    target: int
    triton: str
    registers: int = 0
    spills: int = 0
    shared: int = 0
    instructions: dict[str, int] = field(default_factory=dict)
    bound_microseconds: float = 0.0
    bound_by: str = ""
    faults: list[str] = field(default_factory=list)


def signature(case: Case, target: int) -> tuple[dict[str, str], dict[str, Any]]:
    """Types of the arguments, and the constants."""
    constants = case.constants(target)
    types = {}
    for name in case.kernel.arg_names:
        if name in constants:
            types[name] = "constexpr"
        else:
            types[name] = case.types.get(name, "i32")
    return types, constants


def compile_case(case: Case, target: int, debug: bool = False) -> Any:
    """Compile for a target; pointers and strides that are multiples of 16 at Wan's shapes are promised so."""
    types, constants = signature(case, target)
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(case.kernel.arg_names)
        if (types[name].startswith("*") and name not in VARIES_IN_ALIGNMENT)
        or (types[name] == "i32" and case.is_aligned(name))
    }
    source = ASTSource(fn=case.kernel, signature=types, constexprs=constants, attrs=aligned)
    warps, stages = case.launch(target)
    options = {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True, "debug": debug}
    return triton.compile(source, target=GPUTarget("cuda", target, 32), options=options)


def inspect(case: Case, target: int, folder: Path) -> Row:
    """Compile, disassemble, count, and compare with what the case promises."""
    row = Row(case.name, target, triton.__version__)
    try:
        compiled = compile_case(case, target)
    except Exception as error:  # whatever a compiler throws is the result for this row
        row.faults.append(f"does not compile: {type(error).__name__}: {str(error).splitlines()[0][:120]}")
        return row
    binary = folder / "kernel.cubin"
    binary.write_bytes(compiled.asm["cubin"])
    code, usage = (
        subprocess.run(
            [BINARIES / "cuobjdump", flag, binary], capture_output=True, text=True, check=True
        ).stdout
        for flag in ("-sass", "-res-usage")
    )
    row.registers = int(re.findall(r"REG:(\d+)", usage)[-1])
    row.shared = compiled.metadata.shared
    row.spills = len(re.findall(r"\b(?:LDL|STL)\b", code))
    counts = {name: len(re.findall(rf"\b{name}\b", code)) for name in COUNTED}
    row.instructions = {name: count for name, count in counts.items() if count}
    row.bound_microseconds, row.bound_by = roofline(case, target)
    if "EXIT" not in code:
        row.faults.append("no machine code")
    if row.spills:
        row.faults.append(f"{row.spills} register spills")
    if row.shared > SHARED_LIMIT[target]:
        row.faults.append(f"{row.shared} bytes of shared memory, limit {SHARED_LIMIT[target]}")
    for name in narrow_offsets(case, compiled.asm["ttir"]):
        row.faults.append(f"a product with {name} in 32 bits")
    for name in case.promises.get(target, ()):
        if not counts[name]:
            row.faults.append(f"no {name}")
    return row


def narrow_offsets(case: Case, ttir: str) -> list[str]:
    """Strides that are multiplied in 32 bits, where an offset into a large tensor overflows."""
    meant = {name: name for name in case.kernel.arg_names if STRIDE.search(name)}
    found = []
    for name, operation, operands, kind in MADE.findall(ttir):
        used = [meant[each] for each in re.findall(r"%(\w+)", operands) if each in meant]
        if used and operation != "arith.muli":
            meant[name] = used[0]  # the same number in another shape
        elif used and re.search(r"\bi32\b|xi32\b", kind):
            found.append(used[0])
    return found


def roofline(case: Case, target: int) -> tuple[float, str]:
    """Microseconds that the operations or the bytes take at the rates of the target, and which of them."""
    rates = RATES[target]
    times = {"bytes": case.bytes / rates["bytes"]}
    for kind, operations in case.operations.items():
        times["operations"] = times.get("operations", 0.0) + operations / rates[kind]
    slower = max(times, key=lambda key: times[key])
    return round(times[slower] * 1e6, 1), slower


def line(row: Row) -> str:
    counts = " ".join(f"{name}:{count}" for name, count in row.instructions.items())
    verdict = "; ".join(row.faults) if row.faults else "ok"
    bound = f"{row.bound_microseconds:.0f} us ({row.bound_by})"
    return (
        f"{row.kernel:38} sm_{row.target:<4} {row.registers:4} regs {row.spills:3} spills "
        f"{row.shared / 1024:6.1f} KiB  {counts:34} >= {bound:24} {verdict}"
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="write the rows here")
    parser.add_argument("--only", default="", help="kernels whose name holds this")
    parser.add_argument(
        "--targets", default="80,90,100", help="compute capabilities, two or three digits each"
    )
    arguments = parser.parse_args()
    targets = arguments.targets.split(",")
    if unknown := set(targets) - set(map(str, SHARED_LIMIT)):
        parser.error(f"--targets: expected some of {', '.join(map(str, SHARED_LIMIT))}, got {min(unknown)!r}")
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for case in CASES:
            if arguments.only not in case.name:
                continue
            for target in map(int, targets):
                if target in case.targets:
                    rows.append(inspect(case, target, Path(folder)))
                    print(line(rows[-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    bad = [row for row in rows if row.faults]
    print(f"{len(rows)} compiled with Triton {triton.__version__}, {len(bad)} with faults")
    return 1 if bad or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
