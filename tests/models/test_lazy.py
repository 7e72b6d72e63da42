"""`wavecore.models` gives every public name and imports a model only when it is used."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import wavecore.models


def test_every_public_name_is_there():
    assert set(wavecore.models.__all__) <= set(dir(wavecore.models))
    for name in wavecore.models.__all__:
        assert getattr(wavecore.models, name) is not None


def test_unknown_name():
    with pytest.raises(AttributeError, match="no attribute 'load_everything'"):
        wavecore.models.load_everything  # noqa: B018


def test_import_alone_loads_no_model():
    code = (
        "import sys, wavecore.models; assert not [m for m in sys.modules if m.startswith('wavecore.models.')]"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
