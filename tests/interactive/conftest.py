"""Small random models, causal and bidirectional."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.models import tiny_stream_model

from wavecore.pipeline import Pipeline


@pytest.fixture(scope="session")
def model():
    return tiny_stream_model()


@pytest.fixture(scope="session")
def pipe(model):
    return Pipeline(model)


@pytest.fixture(scope="session")
def joint_pipe(model):
    return Pipeline(replace(model, name="tiny joint", defaults=replace(model.defaults, joint_latents=6)))
