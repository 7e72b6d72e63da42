"""The page's logic under Node.js, and that the documentation names every message."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import get_args

import pytest

from wavecore.serve import protocol
from wavecore.serve.settings import ServeSettings

HERE = Path(__file__).parent
DOCUMENT = (HERE.parent.parent / "docs" / "serve.md").read_text(encoding="utf-8")


@pytest.mark.skipif(shutil.which("node") is None, reason="no Node.js (Debian: apt-get install nodejs)")
def test_playback_clock_updates_and_messages_of_the_page():
    done = subprocess.run(
        ["node", "--test", str(HERE / "test_page.mjs")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^# pass [1-9]", done.stdout, re.M), done.stdout


@pytest.mark.parametrize("union", [protocol.ClientMessage, protocol.ServerMessage])
def test_every_message_and_field_is_documented(union):
    for kind in get_args(union):
        assert f"`{kind.__struct_config__.tag}`" in DOCUMENT
        missing = [name for name in kind.__struct_fields__ if f"`{name}`" not in DOCUMENT]
        assert missing == [], kind


def test_every_error_code_and_flag_is_documented():
    assert [code for code in get_args(protocol.Code) if f"`{code}`" not in DOCUMENT] == []
    flags = ["--" + name.replace("_", "-") for name in ServeSettings.model_fields]
    assert [flag for flag in flags if f"`{flag}" not in DOCUMENT] == []
