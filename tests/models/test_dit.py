"""The causal Wan DiT against diffusers' `WanTransformer3DModel`, and its two ways against each other.

diffusers computes the sinusoid of a timestep in float32 and Wan in float64, as here; that is most of the
difference printed below, which is why it grows with the timestep.
"""

from __future__ import annotations

import math

import diffusers
import pytest
import torch
from diffusers.models.transformers.transformer_wan import WanAttnProcessor

from wavecore.cache.view import PageView
from wavecore.errors import UsageError
from wavecore.models.checkpoint_names import convert_state_dict
from wavecore.models.dit import WAN_1_3B, WAN_14B, CausalWanDiT, DiTConfig, TextContext
from wavecore.models.rope import axis_sizes, rope_table

LAYERS = 2


def make_pair(head_dim: int, seed: int = 0, rope_max_seq_len: int = 1024):
    """The same random weights in both models; norm weights and biases are random too."""
    torch.manual_seed(seed)
    theirs = diffusers.WanTransformer3DModel(
        patch_size=(1, 2, 2),
        num_attention_heads=2,
        attention_head_dim=head_dim,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=256,
        ffn_dim=96,
        num_layers=LAYERS,
        cross_attn_norm=True,
        qk_norm="rms_norm_across_heads",
        eps=1e-6,
        rope_max_seq_len=rope_max_seq_len,
    ).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
    ours = make_dit(head_dim)
    ours.load_state_dict(convert_state_dict(theirs.state_dict(), "original"))
    return ours, theirs.requires_grad_(False)


def make_dit(head_dim: int = 24, **fields) -> CausalWanDiT:
    config = DiTConfig(dim=2 * head_dim, heads=2, layers=LAYERS, ffn_dim=96, text_dim=32, **fields)
    return CausalWanDiT(config).eval().requires_grad_(False)


class MaskedSelfAttention(WanAttnProcessor):
    """Passes a mask to self-attention only."""

    def __init__(self, mask: torch.Tensor) -> None:
        super().__init__()
        self.mask = mask

    def __call__(self, attn, hidden_states, encoder_hidden_states=None, attention_mask=None, rotary_emb=None):
        mask = self.mask if encoder_hidden_states is None else None
        return super().__call__(attn, hidden_states, encoder_hidden_states, mask, rotary_emb)


def assert_close_and_print(what: str, ours: torch.Tensor, theirs: torch.Tensor) -> None:
    error = (ours - theirs).abs().max().item()
    print(f"{what}: max error {error:.1e} at mean magnitude {theirs.abs().mean():.2f}")
    assert error <= 1e-5
    assert theirs.abs().mean() > 0.1


@pytest.mark.parametrize("head_dim", [24, 32])
@pytest.mark.parametrize("size", [(1, 4, 4), (3, 8, 8), (4, 6, 10)])
def test_equals_diffusers_at_one_noise_level(head_dim, size):
    ours, theirs = make_pair(head_dim)
    latents, text = torch.randn(2, 16, *size), torch.randn(2, 7, 32)
    expected = theirs(latents, torch.tensor([1000.0, 500.0]), text).sample
    timesteps = torch.tensor([[1000.0], [500.0]]).expand(-1, size[0])
    assert_close_and_print(f"head size {head_dim}", ours(latents, timesteps, text), expected)


@pytest.mark.parametrize("head_dim", [24, 32])
def test_equals_diffusers_with_a_timestep_per_frame(head_dim):
    ours, theirs = make_pair(head_dim)
    latents, text = torch.randn(2, 16, 3, 4, 6), torch.randn(2, 7, 32)
    timesteps = torch.tensor([[0.0, 625.0, 1000.0], [750.0, 250.0, 500.0]])
    expected = theirs(latents, timesteps.repeat_interleave(6, 1), text).sample
    assert_close_and_print(f"head size {head_dim}", ours(latents, timesteps, text), expected)


@pytest.mark.parametrize("head_dim", [24, 32])
@pytest.mark.parametrize("chunk_frames", [1, 2, 3])
def test_causal_equals_diffusers_with_a_mask(head_dim, chunk_frames):
    ours, theirs = make_pair(head_dim)
    latents, text = torch.randn(1, 16, 6, 4, 4), torch.randn(1, 7, 32)
    timesteps = torch.tensor([[0.0, 0.0, 625.0, 625.0, 1000.0, 1000.0]])
    chunk = (torch.arange(6) // chunk_frames).repeat_interleave(4)
    for block in theirs.blocks:
        block.attn1.set_processor(MaskedSelfAttention(chunk[:, None] >= chunk))
    expected = theirs(latents, timesteps.repeat_interleave(4, 1), text).sample
    result = ours(latents, timesteps, text, attend="causal", chunk_frames=chunk_frames)
    assert_close_and_print(f"head size {head_dim}, chunks of {chunk_frames}", result, expected)
    assert (result - ours(latents, timesteps, text)).abs().max() > 1e-3


def test_frame_mask_equals_diffusers_with_a_mask():
    ours, theirs = make_pair(24)
    latents, text = torch.randn(2, 16, 4, 4, 4), torch.randn(2, 7, 32)
    reads = torch.rand(2, 4, 4) < 0.5
    reads |= torch.eye(4, dtype=torch.bool)
    mask = reads.repeat_interleave(4, 1).repeat_interleave(4, 2)[:, None]
    for block in theirs.blocks:
        block.attn1.set_processor(MaskedSelfAttention(mask))
    timesteps = torch.full((2, 4), 500.0)
    expected = theirs(latents, timesteps[:, 0], text).sample
    assert_close_and_print("frame mask", ours(latents, timesteps, text, attend=reads), expected)


def test_equals_diffusers_past_1024_latent_frames():
    ours, theirs = make_pair(32, rope_max_seq_len=2048)
    latents, text = torch.randn(1, 16, 1100, 2, 2), torch.randn(1, 7, 32)
    expected = theirs(latents, torch.tensor([500.0]), text).sample
    result = ours(latents, torch.full((1, 1100), 500.0), text)
    assert_close_and_print("1,100 latent frames", result, expected)


def test_shifted_positions_change_nothing():
    ours, _ = make_pair(24)
    latents, text, timesteps = torch.randn(1, 16, 4, 4, 4), torch.randn(1, 7, 32), torch.full((1, 4), 500.0)
    for start in (100, 5000, 200_000):
        shifted = ours(latents, timesteps, text, frame_positions=torch.arange(4)[None] + start)
        torch.testing.assert_close(shifted, ours(latents, timesteps, text), rtol=1e-5, atol=1e-5)
    stretched = ours(latents, timesteps, text, frame_positions=3 * torch.arange(4)[None])
    assert (stretched - ours(latents, timesteps, text)).abs().max() > 1e-3


@pytest.mark.parametrize("head_dim, sizes", [(128, (44, 42, 42)), (24, (8, 8, 8)), (32, (12, 10, 10))])
def test_rope_axis_sizes(head_dim, sizes):
    assert axis_sizes(head_dim) == sizes


def test_rope_table_at_a_far_position():
    frame, row, column = 123_456, 2, 1
    table = rope_table(torch.tensor([[frame]]), 3, 4, 32)[0, row * 4 + column]
    angles = [
        position / 10000 ** (2 * i / size)
        for position, size in ((frame, 12), (row, 10), (column, 10))
        for i in range(size // 2)
    ]
    expected = torch.tensor([[math.cos(a), math.sin(a)] for a in angles], dtype=torch.float64)
    torch.testing.assert_close(table.double(), expected, rtol=0, atol=1e-7)


def test_text_groups_condition_their_own_frames():
    ours, _ = make_pair(24)
    latents, timesteps = torch.randn(1, 16, 4, 4, 4), torch.full((1, 4), 500.0)
    text = torch.randn(1, 2, 7, 32)
    each_frame = torch.eye(4, dtype=torch.bool)  # so that nothing but the text can mix frames
    grouped = ours(latents, timesteps, text, attend=each_frame)
    for frames, group in ((slice(0, 2), 0), (slice(2, 4), 1)):
        alone = ours(latents, timesteps, text[:, group], attend=each_frame)
        torch.testing.assert_close(grouped[:, :, frames], alone[:, :, frames], rtol=1e-5, atol=1e-5)


def test_x0_prediction_and_velocity_say_the_same():
    torch.manual_seed(0)
    velocity = make_dit()
    x0 = make_dit(prediction="x0")
    x0.load_state_dict(velocity.state_dict())
    latents, text = torch.randn(1, 16, 3, 4, 4), torch.randn(1, 7, 32)
    timesteps = torch.tensor([[1000.0, 500.0, 100.0]])
    output = velocity.predict(latents, timesteps, text)
    assert torch.equal(velocity(latents, timesteps, text), output)
    assert torch.equal(x0.to_x0(output, latents, timesteps), output)
    recovered = velocity.to_x0(x0(latents, timesteps, text), latents, timesteps)
    torch.testing.assert_close(recovered, output, rtol=1e-5, atol=1e-5)


def _pages(config: DiTConfig, count: int, tokens: int) -> list[torch.Tensor]:
    return [torch.zeros(count, tokens, config.heads, config.head_dim) for _ in range(config.layers)]


@pytest.mark.parametrize("head_dim", [24, 32])
def test_paged_equals_dense_causal(head_dim):
    """Chunks one after the other through pages, against one masked forward over all of them."""
    ours, _ = make_pair(head_dim)
    frames, chunk, tokens = 6, 2, 6
    latents, text = torch.randn(1, 16, frames, 4, 6), torch.randn(1, 7, 32)
    timesteps = torch.tensor([[0.0, 0.0, 500.0, 500.0, 1000.0, 1000.0]])
    expected = ours.predict(latents, timesteps, text, attend="causal", chunk_frames=chunk)
    context = ours.encode_text(text)
    k_pages, v_pages = _pages(ours.config, frames, tokens), _pages(ours.config, frames, tokens)
    parts = []
    for start in range(0, frames, chunk):
        stop = start + chunk
        view = PageView(
            k_pages=k_pages,
            v_pages=v_pages,
            write_ids=torch.arange(start, stop, dtype=torch.int32)[None],
            read_table=torch.arange(stop, dtype=torch.int32)[None],
            read_lengths=torch.full((1, stop), tokens, dtype=torch.int32),
        )
        piece = slice(start, stop)
        positions = torch.arange(start, stop)[None]
        parts.append(ours.forward_paged(latents[:, :, piece], timesteps[:, piece], positions, context, view))
    torch.testing.assert_close(torch.cat(parts, dim=2), expected, rtol=1e-5, atol=1e-5)


def test_paged_slots_with_their_own_prompts_are_independent():
    ours, _ = make_pair(24)
    tokens = 4
    latents, text = torch.randn(2, 16, 1, 4, 4), torch.randn(2, 7, 32)
    timesteps = torch.tensor([[1000.0], [500.0]])
    contexts = [ours.encode_text(text[i : i + 1]) for i in range(2)]
    together = ours.forward_paged(
        latents,
        timesteps,
        torch.tensor([[3], [9]]),
        TextContext.stack(contexts),
        PageView(
            k_pages=_pages(ours.config, 2, tokens),
            v_pages=_pages(ours.config, 2, tokens),
            write_ids=torch.tensor([[0], [1]], dtype=torch.int32),
            read_table=torch.tensor([[0], [1]], dtype=torch.int32),
            read_lengths=torch.full((2, 1), tokens, dtype=torch.int32),
        ),
    )
    torch.testing.assert_close(together, ours.predict(latents, timesteps, text), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("config, count", [(WAN_1_3B, 825), (WAN_14B, 1095)])
def test_key_mapping_of_the_published_sizes(config, count):
    with torch.device("meta"):
        ours = CausalWanDiT(config).state_dict()
        theirs = diffusers.WanTransformer3DModel(
            num_attention_heads=config.heads,
            attention_head_dim=config.head_dim,
            num_layers=config.layers,
            ffn_dim=config.ffn_dim,
        ).state_dict()
    assert len(ours) == count
    as_diffusers = convert_state_dict(ours, "diffusers")
    assert {k: v.shape for k, v in as_diffusers.items()} == {k: v.shape for k, v in theirs.items()}
    for names in (
        theirs,
        ours,
        {f"model.{key}": tensor for key, tensor in ours.items()},
        {f"model._fsdp_wrapped_module.{key}": tensor for key, tensor in ours.items()},
        {
            "model._fsdp_wrapped_module." + key.replace("blocks.1.", "blocks.1._fsdp_wrapped_module."): tensor
            for key, tensor in ours.items()
        },
    ):
        restored = convert_state_dict(names, "original")
        assert {k: v.shape for k, v in restored.items()} == {k: v.shape for k, v in ours.items()}


def test_parameter_counts_of_the_published_sizes():
    with torch.device("meta"):
        counts = [sum(p.numel() for p in CausalWanDiT(c).parameters()) for c in (WAN_1_3B, WAN_14B)]
    assert counts == [1_418_996_800, 14_288_491_584]


def test_bfloat16_stays_near_float32():
    ours, _ = make_pair(32)
    latents, text, timesteps = torch.randn(1, 16, 2, 4, 4), torch.randn(1, 7, 32), torch.full((1, 2), 500.0)
    expected = ours(latents, timesteps, text)
    result = ours.bfloat16()(latents.bfloat16(), timesteps, text.bfloat16())
    assert result.dtype == torch.bfloat16
    assert (result.float() - expected).abs().mean() < 0.05 * expected.abs().mean()


@pytest.mark.parametrize("shape", [(1, 16, 1, 5, 4), (1, 8, 1, 4, 4)])
def test_wrong_latents_are_named(shape):
    with pytest.raises(UsageError, match=r"latents: expected .* got"):
        make_dit()(torch.zeros(shape), torch.zeros(1, 1), torch.zeros(1, 7, 32))


def test_wrong_attend_is_named():
    with pytest.raises(UsageError, match="attend"):
        make_dit()(torch.zeros(1, 16, 1, 4, 4), torch.zeros(1, 1), torch.zeros(1, 7, 32), attend="banded")


@pytest.mark.parametrize("fields", [{"dim": 50, "heads": 4}, {"dim": 12, "heads": 4}, {"patch": (2, 2, 2)}])
def test_wrong_configuration_is_named(fields):
    with pytest.raises(UsageError, match=f"{'patch' if 'patch' in fields else 'dim'}: expected"):
        DiTConfig(**fields)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"latents": torch.zeros(1, 16, 8, 8)}, r"latents: expected \[b, c, f, h, w\]"),
        ({"timesteps": torch.zeros(1, 2)}, r"timesteps: expected \[1, 3\], got \[1, 2\]"),
        ({"text": torch.zeros(1, 5, 7)}, r"text: expected \[1, l, 32\]"),
        ({"text": torch.zeros(1, 2, 5, 32)}, "with g dividing 3 frames"),
        ({"attend": "causal", "chunk_frames": 0}, "chunk_frames: expected at least 1, got 0"),
        ({"attend": "sideways"}, 'attend: expected "full", "causal"'),
        (
            {"attend": torch.ones(3, 3)},
            r"attend: expected a bool tensor \[3, 3\] or .* got torch.float32 \[3, 3\]",
        ),
        ({"attend": torch.ones(2, 2, dtype=torch.bool)}, r"attend: .*, got torch.bool \[2, 2\]"),
        ({"frame_positions": torch.zeros(3)}, r"frame_positions: expected \[1, 3\], got \[3\]"),
        ({"latents": torch.zeros(0, 16, 3, 8, 8)}, "latents: expected .* none of them 0"),
        ({"latents": torch.zeros(1, 16, 3, 8, 8).half()}, "latents: expected torch.float32 as the weights"),
        ({"text": torch.zeros(1, 0, 32)}, r"text: expected \[1, l, 32\]"),
    ],
)
def test_wrong_clips_are_named(changes, message):
    dit = CausalWanDiT(DiTConfig(dim=48, heads=2, layers=1, ffn_dim=48, text_dim=32))
    arguments = {
        "latents": torch.zeros(1, 16, 3, 8, 8),
        "timesteps": torch.zeros(1, 3),
        "text": torch.zeros(1, 5, 32),
    }
    with pytest.raises(UsageError, match=message):
        dit(**(arguments | changes))
