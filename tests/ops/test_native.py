"""What holds for the C++ kernels only: threads, instruction sets, the build."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support.ops import Context, PageWrite, rope_table

from wavecore import ops
from wavecore.errors import UsageError

# Where there is a compiler the module has to be there: a build that failed must not pass as a skip.
if any(map(shutil.which, ("c++", "g++", "clang++"))):
    from wavecore.ops import native
else:
    native = pytest.importorskip("wavecore.ops.native")


@pytest.fixture(params=native.INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    native.select_instruction_set(request.param)
    yield request.param
    native.select_instruction_set(None)


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


class Work:
    """Every operation, on inputs that are large enough for several threads."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.x, self.y = torch.randn(2, 4, 600, 192)
        self.shift, self.scale = torch.randn(2, 4, 3, 192)
        self.write = PageWrite(slots=4, tokens=290, page_tokens=100, heads=8)
        self.context = Context([[200, 31, 200], [200, 200, 7]], tokens=300, page_tokens=200).arguments()
        self.rope = rope_table(12, 100, 12)
        low = Context([[200, 31], [200, 7]], tokens=300, page_tokens=200, heads=2, dtype=torch.bfloat16)
        self.low = low.arguments()
        self.keys = ops.empty_key_pages(*low.k_pages.shape)
        ops.quantize_key_pages(low.k_pages, low.page_table.flatten(), low.page_lengths.flatten(), self.keys)
        self.weight = ops.pack_int8(torch.randn(1100, 192))

    def results(self) -> list[torch.Tensor]:
        write = self.write.copy()
        q = ops.qkv_page_write(**write)
        unroped, ids = write["unroped_pages"].nan_to_num(), write["unroped_ids"].flatten()
        shifted = torch.zeros_like(unroped)
        ops.rope_shift(unroped, ids, shifted, ids, self.rope)
        return [
            ops.layer_norm_modulate(self.x, self.shift, self.scale, 1e-6),
            ops.gate_residual(self.x, self.y, self.shift),
            ops.rms_norm(self.x, self.scale[0, 0], 1e-6),
            q,
            write["k_pages"].nan_to_num(),
            write["v_pages"].nan_to_num(),
            shifted,
            *ops.paged_attention(*self.context, return_lse=True),
            *ops.paged_attention(*self.low, return_lse=True),
            *ops.paged_attention_int8(self.low[0], self.keys, *self.low[2:], return_lse=True),
            ops.int8_linear(self.x, self.weight, dtype=torch.bfloat16),
        ]


def equal(results: list[torch.Tensor], expected: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(results, expected, strict=True))


def test_the_same_bits_for_any_number_of_threads(instruction_set: str, threads: None) -> None:
    work = Work()
    torch.set_num_threads(1)
    expected = work.results()
    for count in (2, 3, 8):
        torch.set_num_threads(count)
        assert equal(work.results(), expected), count


def test_two_python_threads_at_once(instruction_set: str) -> None:
    work = Work()
    expected = work.results()
    outcomes: list[bool] = []
    workers = [
        threading.Thread(target=lambda: outcomes.extend(equal(work.results(), expected) for _ in range(3)))
        for _ in range(2)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert outcomes == [True] * 6


def test_the_interpreter_lock_is_released(threads: None) -> None:
    torch.set_num_threads(1)
    context = Context([[4000]], tokens=2000, heads=4, head_dim=64, page_tokens=4000).arguments()
    ticks: list[float] = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.001)

    ticker = threading.Thread(target=tick)
    ticker.start()
    start = time.perf_counter()
    ops.paged_attention(*context)
    end = time.perf_counter()
    done.set()
    ticker.join()
    assert sum(start < at < end for at in ticks) >= 5


def test_threads_are_those_of_pytorch() -> None:
    from wavecore import _native

    if sys.platform == "linux":
        assert "torch" in _native.thread_library()


def test_an_instruction_set_that_is_not_there_is_an_error() -> None:
    available = ", ".join(native.INSTRUCTION_SETS)
    message = f"^WAVECORE_CPU: expected one of {available} on this processor, got 'mmx'$"
    with pytest.raises(UsageError, match=message):
        native.select_instruction_set("mmx")


def processor_flags() -> set[str]:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return {flag for line in lines if line.startswith("flags") for flag in line.split()}


def test_matrix_units_are_offered_only_where_the_system_grants_them() -> None:
    assert ("amx" in native.INSTRUCTION_SETS) == (native.matrix_units() == "usable")
    if {"amx_tile", "amx_bf16", "amx_int8", "avx512_vnni", "avx512_bf16"} <= processor_flags():
        assert native.matrix_units() in ("usable", "refused by the system", "none in this build")
    elif native.matrix_units() != "usable":  # usable without the processor's flags: emulated
        assert native.matrix_units() in ("none in this processor", "none in this build")
