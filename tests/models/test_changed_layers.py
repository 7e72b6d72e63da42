"""Layers that somebody watches or replaces are run one by one, wherever in a block they are."""

import pytest
import torch

import wavecore
from wavecore.models.dit_layers import Linear

PLACES = [f"{part}.{name}" for part in ("self_attn", "cross_attn") for name in "qo"]
PLACES += ["self_attn.k", "self_attn.v", "ffn.0", "ffn.2"]


class Counted(Linear):
    """A linear layer of somebody else."""

    calls = 0

    def forward(self, *arguments, **options):
        self.calls += 1
        return super().forward(*arguments, **options)


def latents(pipe):
    with pipe.session("a red ball", steps=1, num_frames=9, size=(32, 32)) as session:
        return torch.cat([group.latent for group in session])


@pytest.fixture
def pipe():
    return wavecore.load("sprites")


@pytest.mark.parametrize("place", PLACES)
def test_a_hook_is_called_and_a_replaced_layer_runs(pipe, place):
    before, seen = latents(pipe), []
    layer = pipe.model.dit.blocks[2].get_submodule(place)
    handle = layer.register_forward_hook(lambda *_: seen.append(place))
    torch.testing.assert_close(latents(pipe), before, rtol=1e-4, atol=1e-4)
    assert seen
    handle.remove()
    other = Counted(layer.in_features, layer.out_features)
    other.load_state_dict(layer.state_dict())
    pipe.model.dit.blocks[2].set_submodule(place, other)
    torch.testing.assert_close(latents(pipe), before, rtol=1e-4, atol=1e-4)
    assert other.calls
