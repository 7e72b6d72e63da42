"""Fixtures of the benchmarks: ceilings of the machine, and a row for each pair that is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from pytest_benchmark.fixture import BenchmarkFixture
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parent))
from measure import Ceilings, measure_pair, read_result, write_result


@pytest.fixture(scope="module")
def rows(request: pytest.FixtureRequest) -> Iterator[list[dict[str, Any]]]:
    """Rows of the result file; those that were not measured again are kept."""
    collected: list[dict[str, Any]] = []
    yield collected
    if collected:
        before = read_result(request.module.RESULT).get("rows", [])
        measured = {_case(row) for row in collected}
        kept = [row for row in before if _case(row) not in measured]
        rows = sorted([*kept, *collected], key=_case)
        write_result(request.module.RESULT, {"rows": rows})


def _case(row: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(row[key]) for key in ("op", "shape", "beside", "threads"))


@pytest.fixture(params=sorted({1, torch.get_num_threads()}), ids=lambda count: f"{count} threads")
def ceilings(request: pytest.FixtureRequest) -> Iterator[Ceilings]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    torch.manual_seed(0)
    with torch.inference_mode():
        yield Ceilings()
    torch.set_num_threads(before)


@pytest.fixture
def record(
    benchmark: BenchmarkFixture, ceilings: Ceilings, rows: list[dict[str, Any]]
) -> Callable[..., None]:
    """Check ours, time the pair, and add a row with the rate reached."""

    def run(
        op: str,
        shape: str,
        ours: Callable[[], Tensor],
        others: dict[str, Callable[[], object]],
        exact: Tensor,
        *,
        moved: int = 0,
        operations: float = 0,
        bound: float | None = None,
    ) -> None:
        error = (ours().double() - exact.double()).abs().max().item()
        if bound is None:
            bound = 1e-5 * max(1.0, exact.abs().max().item()) if exact.dtype == torch.float32 else 0.05
        assert error <= bound, f"{op} is wrong by {error}: it is not timed"
        for name, other in others.items():
            pair = measure_pair(ours, other)
            row: dict[str, Any] = {
                "op": op,
                "shape": shape,
                "beside": name,
                "threads": torch.get_num_threads(),
                "microseconds": [round(value, 1) for value in pair.ours],
                "beside_microseconds": [round(value, 1) for value in pair.other],
                "ratio_quiet": round(pair.ratio, 2),
                "ratio_busy": round(pair.busy_ratio, 2),
            }
            if moved:
                row["gigabytes_per_second"] = round(moved / pair.ours[0] / 1e3, 1)
                row["of_copy"] = round(moved / pair.ours[0] / 1e3 / ceilings.copy_gigabytes(moved), 2)
            if operations:
                row["gflops"] = round(operations / pair.ours[0] / 1e3, 1)
                row["of_float32_matrix_product"] = round(
                    operations / pair.ours[0] / 1e3 / ceilings.float32_gflops, 2
                )
            rows.append(row)
            print(
                f"\n{op:20} {shape:46} {row['threads']} threads  {pair.ours[0]:9.1f} us  "
                f"{name} {pair.other[0]:9.1f} us  {pair.ratio:5.2f}x quiet {pair.busy_ratio:5.2f}x busy",
                end="",
            )
        benchmark.extra_info.update(rows[-1])
        benchmark.pedantic(ours, rounds=3, warmup_rounds=1)

    return run
