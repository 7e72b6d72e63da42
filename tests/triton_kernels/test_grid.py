"""Programs lie along the first axis of the grid: the others take 65,535 at most, less than a long clip."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

FILES = sorted((Path(__file__).parents[2] / "triton_kernels").glob("*.py"))


def calls(tree: ast.AST, *names: str) -> list[ast.Call]:
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in names
    ]


def launches(tree: ast.AST) -> list[ast.Call]:
    """Calls `kernel[grid](...)`."""
    return [
        node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Subscript)
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_the_first_axis_is_used(file: Path) -> None:
    tree = ast.parse(file.read_text())
    for call in calls(tree, "program_id", "num_programs"):
        assert [ast.literal_eval(argument) for argument in call.args] == [0]
    for call in launches(tree):
        assert isinstance(call.func, ast.Subscript) and isinstance(call.func.slice, ast.Tuple)
        assert len(call.func.slice.elts) == 1


def test_kernels_were_found() -> None:
    found = sum(len(launches(ast.parse(file.read_text()))) for file in FILES)
    assert found >= 13
