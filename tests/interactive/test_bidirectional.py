"""The trained models under every adapter: what a stream shows after an update, read back."""

from __future__ import annotations

import pytest

import wavecore as wc
from wavecore.control.speculative import UnitCosts
from wavecore.interactive.speculation import Speculation, fitting_adapters
from wavecore.train.evaluation import Setting, adapter_readback, evaluate, update_readback

BARS = {"colour": 95, "shape": 85, "direction": 90}
JOINT = ("boundary-image", "latent-input", "keyframes")


@pytest.fixture(scope="module")
def bidirectional():
    return wc.load("sprites-bidirectional")


def test_the_bidirectional_variant_samples_a_long_window_jointly(bidirectional):
    assert bidirectional.model.name == "sprites-bidirectional"
    assert bidirectional.model.defaults.joint_latents == 12
    assert set(fitting_adapters(bidirectional.model)) == set(JOINT)


@pytest.mark.parametrize("adapter", JOINT)
def test_a_long_bidirectional_chunk_answers_an_update(bidirectional, adapter):
    """Colour, shape and direction are the old ones before the branch and the new ones behind it."""
    costs = UnitCosts(denoise=0.25, decode=0.01)
    speculation = Speculation(adapter=adapter, pacing="virtual", costs=costs)
    shown = update_readback(bidirectional, Setting(), speculation, count=1)
    wrong = [name for what in BARS for name in (what, f"before_{what}") if shown[name] < 100]
    assert not wrong and shown["present"] == 100
    assert shown["seam"] < 8, "the subject goes on from where it was"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sprites", "sprites-bidirectional"])
def test_every_adapter_shows_what_the_prompt_says(name):
    pipe = wc.load(name)
    result = adapter_readback(pipe, Setting())
    assert list(result) == list(fitting_adapters(pipe.model))
    for adapter, shown in result.items():
        for what, bar in BARS.items():
            assert shown[what] >= bar and shown[f"before_{what}"] >= bar, f"{adapter}: {what}"
        assert shown["seam"] < 8, adapter


def test_the_evaluation_of_the_variant_is_that_of_its_adapters(bidirectional, monkeypatch):
    monkeypatch.setattr("wavecore.train.evaluation.adapter_readback", lambda *a, **more: {"ran": {}})
    assert evaluate(bidirectional, Setting()) == {"ran": {}}
