"""README and docs: their code runs, their command lines are understood, their links lead somewhere."""

from __future__ import annotations

import importlib
import re
import shlex
from pathlib import Path

import click
import pytest
import torch

from wavecore.cli import cli
from wavecore.models import CausalWanDiT, DiTConfig, WanVAE, WanVAEConfig, save_model

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SLOW = {"serve.md", "speculative.md", "wave.md"}  # played in real time, or long clips over processes


def name(page):
    return page.name


def blocks(page, *languages):
    """Fenced code of a page."""
    found = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [code for language, code in found if language in languages]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder in which the examples of the pages find what they name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "clip.mov").symlink_to(ROOT / "examples" / "dog.mp4")
    torch.manual_seed(0)
    dit = CausalWanDiT(DiTConfig(dim=32, heads=2, layers=1, ffn_dim=64, text_dim=16))
    save_model(dit, tmp_path / "path" / "to" / "checkpoint")
    save_model(WanVAE(WanVAEConfig(base_dim=4, num_res_blocks=1)), tmp_path / "path" / "to" / "vae")
    return tmp_path


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page.name in SLOW else [])
        for page in PAGES
        if blocks(page, "python")
    ],
    ids=name,
)
def test_code_runs(page, folder):
    code = blocks(page, "python")
    if page.name != "serve.md":
        return run(page, code)
    serving = pytest.importorskip("support.serving")
    with serving.serving() as server:
        run(page, [block.replace("http://127.0.0.1:7860", server.url) for block in code])
    return None


def run(page, code):
    """The blocks of a page, one after the other, in one namespace."""
    names = {}
    for number, block in enumerate(code):
        exec(compile(block, f"{page.name}, block {number}", "exec"), names)


def command_lines(page):
    """Arguments of each `wavecore` in the shell code of a page."""
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split(" | "):
                words = shlex.split(part, comments=True)
                if "wavecore" in words and "pip" not in words:
                    yield words[words.index("wavecore") + 1 :]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "bash")], ids=name)
def test_command_lines_are_understood(page, folder):
    for command, *arguments in command_lines(page):
        cli.get_command(click.Context(cli), command).make_context(command, arguments)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "examples" / "README.md"], ids=name)
def test_links_lead_somewhere(page):
    for path, heading in re.findall(r"\]\((?!https?:)([^)#\s]*)(?:#([^)]*))?\)", page.read_text("utf-8")):
        target = page.parent / path if path else page
        assert target.exists(), path
        if heading:
            titles = re.findall(r"^#+ (.*)$", target.read_text("utf-8"), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def exists(name):
    """Whether a dotted name is a module or something in one; fields of classes count."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError as error:
            if not str(error.name).startswith("wavecore"):
                return True  # a module for which a package is missing here
            continue
        for part in parts[count:]:
            if part in getattr(found, "__annotations__", {}):
                return True
            found = getattr(found, part, None)
        return found is not None
    return False


def test_names_in_backticks_exist():
    files = [*PAGES, ROOT / "CHANGELOG.md", *sorted((ROOT / "wavecore").rglob("*.py"))]
    named = {
        (path.relative_to(ROOT).as_posix(), name)
        for path in files
        for name in re.findall(r"`(wavecore(?:\.\w+)+)(?:\(.*?\))?`", path.read_text("utf-8"))
    }
    assert len(named) > 50
    assert [place for place in sorted(named) if not exists(place[1])] == []
