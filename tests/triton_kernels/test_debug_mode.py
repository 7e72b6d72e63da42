"""In debug mode the kernels check page ids and lengths: in Triton's interpreter, and in the machine code."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

from kernel_cases import CASES
from kernel_report import compile_case

# The interpreter has debug mode as an option alone; TRITON_DEBUG=1 is for what is compiled.
PROGRAM = """
import dataclasses, torch
from triton.runtime.interpreter import interpreter_builder
interpreter_builder.options = dataclasses.replace(interpreter_builder.options, debug=True)
from support.ops import Context
from wavecore import ops
from wavecore.triton_kernels.paged_attention_tma import paged_attention_tma
ops.set_backend("triton")
def said(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        return next(word for word in ("page_table", "page_lengths", "page_ids") if word in repr(error))
    return "nothing"
def context(entry, value, lengths):
    made = Context([[64, 5]], tokens=70, heads=1, head_dim=64, page_tokens=64, dtype=torch.float16)
    (made.page_lengths if lengths else made.page_table)[0, entry] = value
    return made.arguments()
def by_descriptors(*arguments):
    paged_attention_tma(*arguments, 0.125, torch.empty_like(arguments[0]), None, None)
def quantise(q, k_pages, v_pages, table, lengths):
    ops.quantize_key_pages(k_pages, table[0], lengths[0], ops.empty_key_pages(*k_pages.shape))
for function in (ops.paged_attention, by_descriptors, quantise):
    print(*(said(function, *context(1, value, lengths)) for value, lengths in
            ((4, False), (-2, False), (65, True), (-1, True), (3, True))))
"""


def test_ids_and_lengths_out_of_range_are_named() -> None:
    tests = str(Path(__file__).parents[1])
    path = os.pathsep.join([tests, *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    attention, descriptors, quantised = done.stdout.splitlines()
    assert attention == descriptors == "page_table page_table page_lengths page_lengths nothing"
    assert quantised == "page_ids page_ids page_lengths page_lengths nothing"


@pytest.mark.parametrize("name", ["paged_attention (pointers)", "paged_attention (descriptors)"])
def test_the_checks_are_compiled_in_debug_mode_only(name: str) -> None:
    case = next(case for case in CASES if case.name == name)
    code = [compile_case(case, 90, debug=debug).asm["ttir"] for debug in (True, False)]
    assert [text.count("page_table out of range") for text in code] == [1, 0]
    assert [text.count("page_lengths out of range") for text in code] == [1, 0]
