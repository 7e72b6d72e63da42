"""Imports point one way: every part of the package imports parts below it only."""

import ast
from pathlib import Path

import pytest

import wavecore

ROOT = Path(wavecore.__file__).parent
# From the bottom up; parts of one row do not import each other, unless a part is the same.
LAYERS = [
    {"errors", "transfer"},
    {"arguments", "faults", "files", "interrupts", "lifetime", "memory", "prompt"},
    {"rounds"},
    {"_native", "triton_kernels", "control", "media", "metrics", "sprites", "trace"},
    {"ops", "config"},
    {"cache"},
    {"models"},
    {"placement", "source"},
    {"restyling", "plan"},
    {"session"},
    {"replica_session"},
    {"interactive"},
    {"session_options"},
    {"pipeline", "live"},
    {"loading"},
    {"train", "serve"},
    {"commands"},
    {"cli"},
]
LAYER = {name: index for index, names in enumerate(LAYERS) for name in names}
WITHOUT_TORCH = {"rounds", "control"}


def imported(path):
    """Modules that a file imports anywhere in it, except for type checkers."""
    todo = [ast.parse(path.read_text(encoding="utf-8"))]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module == "wavecore":
            yield from (f"wavecore.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
        if not (isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"):
            todo.extend(ast.iter_child_nodes(node))


FILES = [path for path in sorted(ROOT.rglob("*.py")) if path.parent != ROOT or path.stem in LAYER]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_file_imports_what_is_below_it(path):
    part = path.relative_to(ROOT).parts[0].removesuffix(".py")
    names = set(imported(path))
    parts = {name.split(".")[1] for name in names if name.startswith("wavecore.")}
    above = {other for other in parts & LAYER.keys() - {part} if LAYER[other] >= LAYER[part]}
    assert not above, f"{part} imports {above}"
    if part in WITHOUT_TORCH:
        assert not {name for name in names if name.split(".")[0] == "torch"}
