"""Types that users see: in step with the code, and enough for the code of the pages."""

import inspect
import re
from pathlib import Path

import pytest

from wavecore.pipeline import Pipeline
from wavecore.session_options import SessionOptions

ROOT = Path(__file__).parents[1]


def test_options_of_a_session_are_its_arguments():
    arguments = inspect.signature(Pipeline.session).parameters
    options = {
        name: a.annotation for name, a in arguments.items() if name not in ("self", "prompt", "control")
    }
    assert {name: kind.__forward_arg__ for name, kind in SessionOptions.__annotations__.items()} == options


@pytest.mark.slow
def test_code_of_the_pages_has_types_that_fit(tmp_path, monkeypatch):
    mypy = pytest.importorskip("mypy.api")
    monkeypatch.chdir(ROOT)
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        code = re.findall(r"^```python\n(.*?)^```$", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)
        (tmp_path / f"{page.stem.lower()}_page.py").write_text("\n".join(code), "utf-8")
    cache = ["--cache-dir", str(tmp_path / "cache")]
    said, _, status = mypy.run([*cache, *map(str, sorted(tmp_path.glob("*_page.py")))])
    assert status == 0, said
