"""What the compiler made of the C++ kernels: of a processor that is not at hand nothing else can be seen."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

native = pytest.importorskip("wavecore.ops.native")


class Instruction(NamedTuple):
    """One line of a listing."""

    address: int
    name: str
    operands: str


@pytest.fixture(scope="module")
def functions() -> dict[str, list[Instruction]]:
    """The instructions of every function of a kernel, by its name."""
    from wavecore import _native

    objdump = shutil.which("objdump")
    if objdump is None:
        pytest.skip("no objdump")
    found: dict[str, list[Instruction]] = {}
    function: list[Instruction] | None = None
    command = [objdump, "-d", "-C", "--no-show-raw-insn", _native.__file__]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listing:
        assert listing.stdout is not None
        for line in listing.stdout:
            if heading := re.fullmatch(r"[0-9a-f]+ <(.*)>:\n", line):
                function = found.setdefault(heading[1], []) if "wavecore::" in heading[1] else None
            elif function is not None and (part := re.match(r" *([0-9a-f]+):\t(\S+) *(.*)", line)):
                function.append(Instruction(int(part[1], 16), part[2], part[3]))
    return found


def inner_loops(function: list[Instruction]) -> Iterator[list[Instruction]]:
    """Loops of a function without another one inside."""
    places = {instruction.address: index for index, instruction in enumerate(function)}
    loops = set()
    for index, (_, name, operands) in enumerate(function):
        target = re.match(r"[0-9a-f]+\b", operands) if name.startswith("j") else None
        first = index + 1 if target is None else places.get(int(target[0], 16), index + 1)
        if first <= index:
            loops.add((first, index))
    for first, last in sorted(loops):
        if not any(first <= a and b <= last for a, b in loops - {(first, last)}):
            yield function[first : last + 1]


@pytest.mark.parametrize(
    ("instruction_set", "product", "products", "most"),
    [
        ("avx2", "vfmadd231ps", 12, 26),
        ("avx2", "vpmaddwd", 8, 26),
        ("avx512", "vfmadd231ps", 24, 46),
        ("avx512", "vpmaddwd", 16, 60),
        ("avx512_vnni", "vfmadd231ps", 24, 46),
        ("avx512_vnni", "vpdpbusd", 16, 36),
    ],
)
def test_sums_of_products_stay_in_registers(
    functions: dict[str, list[Instruction]], instruction_set: str, product: str, products: int, most: int
) -> None:
    """Loops over the depth of a tile read operands, and have no vector on the stack."""
    own = {name: code for name, code in functions.items() if f"wavecore::{instruction_set}::" in name}
    if not own:
        pytest.skip("a build for another processor")
    wide = any("zmm" in instruction.operands for code in own.values() for instruction in code)
    if instruction_set != "avx2" and not wide:
        pytest.skip("emulated in plain code")
    loops = [
        (function, loop)
        for function, code in own.items()
        for loop in inner_loops(code)
        if sum(instruction.name == product for instruction in loop) == products
    ]
    assert loops
    for function, loop in loops:
        vectors = [instruction.operands for instruction in loop if "mm" in instruction.operands]
        assert not [one for one in vectors if "(%rsp" in one or "(%rbp" in one], function
        assert not [one for one in vectors if one.endswith(")")], function
        assert len(loop) <= most, function


@pytest.fixture(scope="module")
def tile_instructions(functions: dict[str, list[Instruction]]) -> dict[str, set[str]]:
    """For each function that has any, its instructions on tiles."""
    if native.matrix_units() == "none in this build":
        pytest.skip("the compiler or the system has no AMX")
    if native.matrix_units() == "usable" and "amx_tile" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("emulated in plain code")
    found = {
        name: {one.name for one in listing if re.match(r"\w*tile|tdp", one.name)}
        for name, listing in functions.items()
    }
    return {name: instructions for name, instructions in found.items() if instructions}


@pytest.mark.parametrize(
    ("function", "products"),
    [
        ("paged_attention_tiles", {"tdpbf16ps"}),
        ("paged_attention_int8_tiles", {"tdpbf16ps", "tdpbssd"}),
        ("int8_linear_tiles", {"tdpbssd", "tileloaddt1"}),
    ],
)
def test_matrix_instructions(
    tile_instructions: dict[str, set[str]], function: str, products: set[str]
) -> None:
    """Each kernel multiplies on tiles, which it configures before and releases behind."""
    everything: set[str] = set().union(
        *(found for name, found in tile_instructions.items() if f"amx::{function}" in name)
    )
    assert everything == products | {"ldtilecfg", "tilerelease", "tilezero", "tileloadd", "tilestored"}


def test_no_other_function_touches_tiles(tile_instructions: dict[str, set[str]]) -> None:
    assert [name for name in tile_instructions if "amx::" not in name] == []
