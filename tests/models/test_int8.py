"""Quantised models: error, report, and their weights when they are copied, moved and saved."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from support.models import levels_of, run_stream, text_features, tiny_dit
from torch import Tensor, nn

from wavecore.errors import UsageError
from wavecore.models.checkpoint import save_model
from wavecore.models.dit import CausalWanDiT, DiTConfig
from wavecore.models.int8 import format_report, quantize_dit
from wavecore.models.int8_linear import Int8Linear
from wavecore.rounds import sequential


def wide_dit() -> CausalWanDiT:
    """One layer, wide enough for the error to be that of normal data."""
    torch.manual_seed(3)
    config = DiTConfig(
        dim=256, heads=4, layers=1, ffn_dim=1024, in_channels=4, out_channels=4, text_dim=16, frequency_dim=32
    )
    dit = CausalWanDiT(config)
    for parameter in dit.parameters():
        scale = 0.3 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
        parameter.data = torch.randn(parameter.shape) * scale
    return dit.eval().requires_grad_(False)


def dense(dit: CausalWanDiT) -> Callable[[], Tensor]:
    generator = torch.Generator().manual_seed(0)
    latents = torch.randn(1, 4, 3, 8, 8, generator=generator)
    timesteps, text = torch.full((1, 3), 500.0), text_features()
    return lambda: dit.predict(latents, timesteps, text, "causal", 1)


def relative(actual: Tensor, exact: Tensor) -> float:
    return ((actual - exact).norm() / exact.norm()).item()


def test_a_whole_model_of_one_layer_is_within_three_percent() -> None:
    dit = wide_dit()
    exact = dense(dit)()
    quantize_dit(dit)
    assert 1e-4 < relative(dense(dit)(), exact) <= 0.03


def test_the_paged_way_gives_what_the_dense_way_gives() -> None:
    """Fused quantisation behind norm and GELU, gate and residual: the same model as layer by layer."""
    plain, quantised = tiny_dit(), tiny_dit()
    quantize_dit(quantised)
    rounds, levels = list(sequential(steps=2, chunks=3)), levels_of(2)
    expected, _ = run_stream(plain, rounds, levels)
    actual, _ = run_stream(quantised, rounds, levels)
    assert len(actual) == 3
    assert all(0 < relative(a, b) <= 0.1 for a, b in zip(actual, expected, strict=True))


def test_what_is_replaced_and_what_stays() -> None:
    dit = tiny_dit(layers=2)
    report = quantize_dit(dit)
    replaced = [name for name, module in dit.named_modules() if isinstance(module, Int8Linear)]
    assert [row.name for row in report] == replaced
    assert len(replaced) == 2 * (4 + 2 + 2)  # self-attention, cross-attention without its keys, feed-forward
    assert all(isinstance(module, nn.Linear) for module in (dit.head.head, dit.layer(0).cross_attn.k))


def test_the_report_tells_layers_with_outliers() -> None:
    dit = wide_dit()
    with torch.no_grad():
        dit.layer(0).ffn[0].weight[:, 0] *= 200  # one input channel decides the scale of every output channel
    report = {row.name: row for row in quantize_dit(dit, sample=dense(dit))}
    parts = ("self_attn.q", "self_attn.k", "self_attn.v", "self_attn.o", "cross_attn.q", "cross_attn.o")
    assert list(report) == [f"blocks.0.{name}" for name in (*parts, "ffn.0", "ffn.2")]
    usual, odd = report["blocks.0.self_attn.q"], report["blocks.0.ffn.0"]
    assert 0 < usual.weight <= 0.015 and usual.output is not None and 0 < usual.output <= 0.015
    assert usual.outliers is not None and usual.outliers >= 1
    assert odd.output is not None
    assert report["blocks.0.ffn.2"].output is not None
    lines = format_report(list(report.values())).splitlines()
    assert len(lines) == 9 and lines[0].split() == ["layer", "weight", "output", "outliers"]
    outputs = [float(line.split()[2].rstrip("%")) for line in lines[1:]]
    assert outputs == sorted(outputs, reverse=True)


def test_without_a_sample_only_weights_are_reported() -> None:
    report = quantize_dit(tiny_dit())
    assert all(row.output is None and row.outliers is None and row.weight > 0 for row in report)
    assert format_report(report).splitlines()[1].split()[2:] == ["-", "-"]


def test_a_model_is_quantised_once() -> None:
    dit = tiny_dit()
    quantize_dit(dit)
    cross = [
        name for name, module in dit.named_modules() if isinstance(module, nn.Linear) and "blocks" in name
    ]
    assert cross and all(name.endswith(("cross_attn.k", "cross_attn.v")) for name in cross)
    with pytest.raises(
        UsageError, match=r"^dit: expected a model with linear layers to quantise, got one without$"
    ):
        quantize_dit(dit)


def test_copies_and_pickles_compute_the_same() -> None:
    dit = tiny_dit()
    quantize_dit(dit)
    expected = dense(dit)()
    other = copy.deepcopy(dit)
    other.layer(0).ffn[0].data.zero_()
    assert not torch.equal(dense(other)(), expected)
    assert torch.equal(dense(dit)(), expected)
    assert torch.equal(dense(pickle.loads(pickle.dumps(dit)))(), expected)


def test_the_state_dict_goes_back_into_a_quantised_model() -> None:
    dit, other = tiny_dit(), tiny_dit()
    quantize_dit(dit)
    for parameter in other.parameters():
        parameter.data.mul_(0.5)
    quantize_dit(other)
    file = io.BytesIO()
    torch.save(dit.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(dense(other)(), dense(dit)())


def test_no_checkpoint_is_written_that_cannot_be_loaded(tmp_path) -> None:
    dit = tiny_dit()
    quantize_dit(dit)
    with pytest.raises(UsageError, match=r"model: expected floating-point weights, got torch.int8 in blocks"):
        save_model(dit, tmp_path / "quantised")
    assert not list(tmp_path.iterdir())


def test_scales_stay_in_float32_when_the_model_is_moved() -> None:
    layer = Int8Linear.of(nn.Linear(70, 30)).to(torch.bfloat16)
    assert (layer.data.dtype, layer.scale.dtype, layer.bias.dtype) == (
        torch.int8,
        torch.float32,
        torch.bfloat16,
    )
    assert layer(torch.randn(2, 70, dtype=torch.bfloat16)).dtype == torch.bfloat16
    assert Int8Linear.of(nn.Linear(70, 30, bias=False))(torch.zeros(2, 70)).eq(0).all()
