"""TAEHV against a plain formulation over whole videos, and its streams."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves

from wavecore.errors import UsageError
from wavecore.models.taehv import TAEHV, TAEHVConfig

TINY = TAEHVConfig(latent_channels=5, encoder_width=8, decoder_widths=(16, 12, 8, 6))


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    model = TAEHV(TINY).eval().requires_grad_(False)
    for name, parameter in model.named_parameters():
        if name.endswith("weight"):
            parameter.mul_(1.6)  # so that the signal survives the layers
    model.decoder[-1].bias.fill_(0.5)  # and the frames are not all clamped
    return model


def _memory(weights, name, x):
    """Memory block over all frames at once: x [t, c, h, w]."""
    before = F.pad(x, (0, 0, 0, 0, 0, 0, 1, 0))[:-1]
    y = torch.cat([x, before], 1)
    for i, end in ((0, F.relu), (2, F.relu), (4, lambda v: v)):
        y = end(F.conv2d(y, weights[f"{name}.conv.{i}.weight"], weights[f"{name}.conv.{i}.bias"], padding=1))
    return F.relu(x + y)


def _conv(weights, name, x, stride=1):
    return F.conv2d(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"), stride=stride, padding=1)


def whole_encode(weights, video):
    """video [t, 3, h, w] in [0, 1]."""
    x = torch.cat([video, video[-1:].expand(-len(video) % 4, -1, -1, -1)])
    x = F.relu(_conv(weights, "encoder.0", x))
    for start, stride in ((2, 2), (7, 2), (12, 1)):
        joined = x.reshape(-1, x.shape[1] * stride, *x.shape[2:])
        x = F.conv2d(joined, weights[f"encoder.{start}.conv.weight"])
        x = _conv(weights, f"encoder.{start + 1}", x, stride=2)
        for i in range(3):
            x = _memory(weights, f"encoder.{start + 2 + i}", x)
    return _conv(weights, "encoder.17", x)


def whole_decode(weights, latents):
    """latents [t, c, h, w] to frames in [0, 1]."""
    x = F.relu(_conv(weights, "decoder.1", torch.tanh(latents / 3) * 3))
    for start in (3, 9, 15):
        for i in range(3):
            x = _memory(weights, f"decoder.{start + i}", x)
        x = F.interpolate(x, scale_factor=2, mode="nearest")
        channels = x.shape[1]
        x = F.conv2d(x, weights[f"decoder.{start + 4}.conv.weight"])
        x = _conv(weights, f"decoder.{start + 5}", x.reshape(-1, channels, *x.shape[2:]))
    return _conv(weights, "decoder.22", F.relu(x)).clamp(0, 1)[3:]


def test_published_size_on_meta():
    with torch.device("meta"):
        model = TAEHV()
    sizes = {name: tensor.numel() for name, tensor in model.state_dict().items()}
    assert len(sizes) == 128
    assert round(sum(n for name, n in sizes.items() if name.startswith("encoder")) / 1e6, 2) == 1.47
    assert round(sum(n for name, n in sizes.items() if name.startswith("decoder")) / 1e6, 2) == 9.84


@pytest.mark.parametrize("frames", [1, 5, 13])
def test_encode_equals_the_plain_formulation(model, frames):
    video = torch.rand(1, 3, frames, 16, 24)
    expected = whole_encode(model.state_dict(), video[0].transpose(0, 1)).transpose(0, 1)
    result = model.encode(video * 2 - 1)[0]
    assert result.shape == (5, 1 + (frames - 1) // 4, 2, 3)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("latents", [1, 2, 4])
def test_decode_equals_the_plain_formulation(model, latents):
    z = 3 * torch.randn(1, 5, latents, 2, 3)
    expected = whole_decode(model.state_dict(), z[0].transpose(0, 1)).transpose(0, 1)
    result = model.decode(z)[0]
    assert result.shape == (3, 1 + 4 * (latents - 1), 16, 24)
    assert expected.std() > 0.01
    torch.testing.assert_close((result + 1) / 2, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("sizes", [[1, 4, 4, 4], [13], [5, 4, 4], [1] * 13, [3, 2, 8]])
def test_stream_encoder_equals_whole_bitwise(model, sizes):
    video = torch.rand(2, 3, 13, 16, 24) * 2 - 1
    encoder = model.stream_encoder()
    parts = [encoder(group) for group in video.split(sizes, dim=2)]
    parts.append(encoder.flush())
    assert torch.equal(torch.cat(parts, dim=2), model.encode(video))
    assert encoder.snapshot() == ()


def test_stream_decoder_gives_one_then_four_frames_bitwise(model):
    latents = torch.randn(2, 5, 4, 2, 3)
    decoder = model.stream_decoder()
    groups = [decoder(latent) for latent in latents.split(1, dim=2)]
    assert [group.shape[2] for group in groups] == [1, 4, 4, 4]
    assert torch.equal(torch.cat(groups, dim=2), model.decode(latents))
    assert decoder.flush() is None


def test_state_of_the_decoder_is_one_frame_a_block(model):
    decoder = model.stream_decoder()
    sizes = []
    for latent in torch.randn(1, 5, 4, 2, 3).split(1, dim=2):
        decoder(latent)
        leaves = tree_leaves(decoder.snapshot())
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in leaves)
        sizes.append(sum(t.nbytes for t in leaves))
    assert len(leaves) == 9
    assert len(set(sizes)) == 1


def test_snapshot_and_restore(model):
    latents = torch.randn(4, 1, 5, 1, 2, 3)
    decoder = model.stream_decoder()
    decoder(latents[0])
    saved = decoder.snapshot()
    expected = decoder(latents[1])
    decoder(latents[2])
    decoder.restore(saved)
    assert torch.equal(decoder(latents[1]), expected)


@pytest.mark.parametrize(
    "call, shape, named",
    [
        ("encode", (1, 3, 4, 16, 16), "video: expected"),
        ("encode", (1, 3, 5, 16, 20), "frames: expected"),
        ("encode", (1, 1, 5, 16, 16), "frames: expected"),
        ("decode", (1, 5, 0, 2, 2), "latents: expected"),
        ("decode", (1, 16, 1, 2, 2), "latent: expected"),
    ],
)
def test_wrong_shapes_are_named(model, call, shape, named):
    with pytest.raises(UsageError, match=named):
        getattr(model, call)(torch.zeros(shape))
