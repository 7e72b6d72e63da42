"""Streaming, state, sizes and arguments of the Wan VAE."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from safetensors.torch import load_file
from torch.utils._pytree import tree_leaves

from wavecore.errors import UsageError
from wavecore.models.stream import run_units
from wavecore.models.wan_vae import WanVAE, WanVAEConfig
from wavecore.models.wan_vae_layers import arrange_weights, convolve_space_time

REAL_LATENT = Path(__file__).parents[1] / "data/wan_latent.safetensors"
TINY = WanVAEConfig(base_dim=8, num_res_blocks=1)


def make_vae(config: WanVAEConfig = TINY, seed: int = 0) -> WanVAE:
    """Random weights, with norms that are not all one."""
    torch.manual_seed(seed)
    vae = WanVAE(config).eval().requires_grad_(False)
    for name, parameter in vae.named_parameters():
        if name.endswith("gamma"):
            parameter.uniform_(0.5, 1.5)
    return vae


@pytest.fixture(scope="module")
def vae():
    return make_vae()


def test_published_size_on_meta():
    with torch.device("meta"):
        vae = WanVAE()
    assert len(vae.state_dict()) == 194
    assert sum(p.numel() for p in vae.parameters()) == 126_892_531
    assert len(vae.decoder.units) == 22
    assert (vae.temporal_factor, vae.spatial_factor) == (4, 8)


@torch.inference_mode()
def test_streams_equal_whole_bitwise(vae):
    video = torch.rand(1, 3, 13, 16, 24) * 2 - 1
    encoder, decoder = vae.stream_encoder(), vae.stream_decoder()
    latents = torch.cat([encoder(group) for group in video.split([1, 4, 4, 4], dim=2)], dim=2)
    assert torch.equal(latents, vae.encode(video))
    groups = [decoder(latent) for latent in latents.split(1, dim=2)]
    assert [group.shape[2] for group in groups] == [1, 4, 4, 4]
    assert torch.equal(torch.cat(groups, dim=2), vae.decode(latents))


@torch.inference_mode()
def test_prefix_equals_prefix_of_the_whole(vae):
    latents = torch.randn(1, 16, 4, 2, 3)
    assert torch.equal(vae.decode(latents[:, :, :2]), vae.decode(latents)[:, :, :5])
    video = torch.rand(1, 3, 9, 16, 24) * 2 - 1
    assert torch.equal(vae.encode(video[:, :, :5]), vae.encode(video)[:, :, :2])


@torch.inference_mode()
def test_every_cut_of_the_decoder_gives_the_same_frames(vae):
    latents = torch.randn(1, 16, 3, 2, 3)
    inputs = vae.conv2(latents.permute(0, 2, 3, 4, 1) * vae.latents_std + vae.latents_mean).split(1, dim=1)
    units = vae.decoder.units
    expected = vae.decode(latents)
    for cut in range(1, len(units)):
        first, second, frames = (), (), []
        for x in inputs:
            x, first = run_units(units[:cut], x, first)
            x, second = run_units(units[cut:], x, second)
            frames.append(x)
        y = torch.cat(frames, dim=1).clamp(-1, 1).permute(0, 4, 1, 2, 3)
        assert torch.equal(y, expected), f"cut before unit {cut}"


@torch.inference_mode()
def test_state_keeps_constant_size_and_no_hidden_storage(vae):
    decoder = vae.stream_decoder()
    sizes = []
    for latent in torch.randn(1, 16, 4, 2, 3).split(1, dim=2):
        decoder(latent)
        leaves = tree_leaves(decoder.snapshot())
        assert all(t.untyped_storage().nbytes() == t.nbytes for t in leaves)
        sizes.append((len(leaves), sum(t.nbytes for t in leaves)))
    assert sizes[0][0] == 24  # tiny configuration: every causal convolution and two temporal upsamplings
    assert len(set(sizes)) == 1


def test_steps_leave_their_arguments_unchanged(vae):
    latent = torch.randn(1, 16, 1, 2, 3)
    _, state = vae.decode_step(latent, ())
    copies = [t.clone() for t in tree_leaves(state)]
    kept = latent.clone()
    first, _ = vae.decode_step(latent, state)
    second, _ = vae.decode_step(latent, state)
    assert torch.equal(first, second)
    assert torch.equal(latent, kept)
    assert all(torch.equal(a, b) for a, b in zip(copies, tree_leaves(state), strict=True))


class DecoderMachine(RuleBasedStateMachine):
    """Decode, snapshot and restore in any order; frames depend only on the latents since the start."""

    @initialize()
    def start(self):
        self.vae = make_vae(WanVAEConfig(base_dim=4, num_res_blocks=1))
        self.latents = torch.randn(8, 1, 16, 1, 1, 1, generator=torch.Generator().manual_seed(1))
        self.stream = self.vae.stream_decoder()
        self.history: list[int] = []
        self.last = None
        self.saved = [((), [])]

    @rule(which=st.integers(0, 7))
    def decode(self, which):
        self.last = self.stream(self.latents[which])
        self.history.append(which)

    @rule()
    def snapshot(self):
        self.saved.append((self.stream.snapshot(), list(self.history)))

    @rule(which=st.integers(0, 20), fresh=st.booleans())
    def restore(self, which, fresh):
        state, history = self.saved[which % len(self.saved)]
        if fresh:
            self.stream = self.vae.stream_decoder()
        self.stream.restore(state)
        self.history, self.last = list(history), None

    @invariant()
    def same_as_whole(self):
        if getattr(self, "last", None) is not None:
            whole = self.vae.decode(torch.cat([self.latents[i] for i in self.history], dim=2))
            assert torch.equal(self.last, whole[:, :, -self.last.shape[2] :])


DecoderMachine.TestCase.settings = settings(max_examples=10, stateful_step_count=8, deadline=None)
test_decoder_machine = DecoderMachine.TestCase


@torch.inference_mode()
def test_encode_normalises_and_decode_undoes_it():
    plain = WanVAEConfig(base_dim=8, num_res_blocks=1, latents_mean=(0.0,) * 16, latents_std=(1.0,) * 16)
    raw, vae = make_vae(plain), make_vae()
    video = torch.rand(1, 3, 5, 16, 16) * 2 - 1
    mean = torch.tensor(TINY.latents_mean).view(1, -1, 1, 1, 1)
    std = torch.tensor(TINY.latents_std).view(1, -1, 1, 1, 1)
    latents = vae.encode(video)
    torch.testing.assert_close(latents * std + mean, raw.encode(video))
    torch.testing.assert_close(vae.decode(latents), raw.decode(raw.encode(video)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("channels, size", [(5, 6), (16, 9)])
def test_both_ways_to_convolve_agree(channels, size):
    torch.manual_seed(0)
    frames = torch.randn(2, 6, size, size + 1, channels)
    weight, bias = torch.randn(7, channels, 3, 3, 3), torch.randn(7)
    expected = torch.nn.functional.conv3d(frames.movedim(-1, 1), weight, bias, padding=(0, 1, 1))
    torch.testing.assert_close(
        convolve_space_time(frames, weight, bias), expected.movedim(1, -1), rtol=1e-4, atol=1e-4
    )


@torch.inference_mode()
def test_arranged_weights_are_read_without_a_copy():
    vae, arranged = make_vae(), make_vae()
    arrange_weights(arranged)
    weight = arranged.decoder.conv1.weight
    joined = weight.transpose(1, 2).flatten(1, 2)
    assert joined.data_ptr() == weight.data_ptr()
    assert joined.is_contiguous(memory_format=torch.channels_last)
    latents = torch.randn(1, 16, 2, 2, 3)
    torch.testing.assert_close(arranged.decode(latents), vae.decode(latents), rtol=1e-4, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(vae.parameters(), arranged.parameters(), strict=True))


def test_gradients_reach_both_ends():
    vae = make_vae().requires_grad_(True)
    vae.decode(vae.encode(torch.rand(1, 3, 5, 8, 8) - 0.5)).square().mean().backward()
    missing = [name for name, p in vae.named_parameters() if p.grad is None]
    assert missing == []


@torch.inference_mode()
def test_half_precision(vae):
    half = make_vae().to(torch.bfloat16)
    latents = torch.randn(1, 16, 2, 2, 2)
    frames = half.decode(latents.bfloat16())
    assert frames.dtype == torch.bfloat16
    assert (frames.float() - vae.decode(latents)).abs().mean() < 0.05


@pytest.mark.parametrize(
    "call, shape, expected",
    [
        ("encode", (1, 3, 6, 16, 16), "[b, 3, 1 + 4 * k, "),
        ("encode", (1, 3, 0, 16, 16), "[b, 3, 1 + 4 * k, "),
        ("encode", (1, 3, 5, 16, 20), "multiple of 8"),
        ("encode", (1, 4, 1, 16, 16), "[b, 3, 1 + 4 * k, "),
        ("encode", (3, 1, 16, 16), "[b, 3, 1 + 4 * k, "),
        ("decode", (1, 16, 0, 2, 2), "1 or more"),
        ("decode", (1, 8, 1, 2, 2), "[b, 16, 1, height, width]"),
    ],
)
def test_wrong_shapes_name_what_was_expected(vae, call, shape, expected):
    with pytest.raises(UsageError) as raised:
        getattr(vae, call)(torch.zeros(shape))
    assert expected in str(raised.value)
    assert str(list(shape)) in str(raised.value)


def test_stream_encoder_wants_one_then_four_frames(vae):
    encoder = vae.stream_encoder()
    with pytest.raises(UsageError, match=r"\[b, 3, 1, "):
        encoder(torch.zeros(1, 3, 4, 8, 8))
    encoder(torch.zeros(1, 3, 1, 8, 8))
    with pytest.raises(UsageError, match=r"\[b, 3, 4, "):
        encoder(torch.zeros(1, 3, 1, 8, 8))
    assert encoder(torch.zeros(1, 3, 4, 8, 8)).shape == (1, 16, 1, 1, 1)


@pytest.mark.parametrize(
    "fields, named",
    [
        ({"temporal_downsample": (True,)}, "temporal_downsample"),
        ({"z_dim": 8}, "latents_mean"),
        ({"latents_std": (0.0,) * 16}, "latents_std"),
    ],
)
def test_wrong_configuration(fields, named):
    with pytest.raises(UsageError, match=named):
        WanVAEConfig(**fields)


@torch.inference_mode()
def test_real_latent_streamed_equals_whole_at_full_width():
    stored = load_file(REAL_LATENT)["latents"]  # [frames, channels, height, width]
    latents = stored.transpose(0, 1)[None, :, :2, :4, :4].float()
    vae = make_vae(WanVAEConfig())
    arrange_weights(vae)
    decoder = vae.stream_decoder()
    streamed = torch.cat([decoder(latent) for latent in latents.split(1, dim=2)], dim=2)
    assert streamed.shape == (1, 3, 5, 32, 32)
    assert streamed.std() > 0
    assert torch.equal(streamed, vae.decode(latents))
