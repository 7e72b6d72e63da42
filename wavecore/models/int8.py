"""Quantisation of a model's linear layers to int8.

Activations are quantised for each token as they come, so nothing has to be calibrated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from wavecore.errors import UsageError
from wavecore.models.dit import CausalWanDiT
from wavecore.models.int8_linear import Int8Linear

# What runs once a prompt, not once a frame, gains nothing.
_KEPT = ("cross_attn.k", "cross_attn.v")


@dataclass(frozen=True)
class LayerError:
    """What int8 costs a layer.

    Attributes
    ----------
    name : str
        Name of the layer.
    weight : float
        Relative error of the weight, in the Frobenius norm.
    output : float or None
        Relative error of what the layer gave in the sample run, when there was one.
    outliers : float or None
        Largest magnitude of an input channel divided by the median channel's, in the sample run.
    """

    name: str
    weight: float
    output: float | None = None
    outliers: float | None = None


def quantize_dit(dit: CausalWanDiT, sample: Callable[[], Any] | None = None) -> list[LayerError]:
    """Replace the linear layers of every block by int8 ones, in place.

    Parameters
    ----------
    dit : CausalWanDiT
        A loaded model, before quantisation.
    sample : callable, optional
        Runs the model once, the paged or the dense way, so that errors of outputs can be reported.

    Returns
    -------
    list of LayerError
        One per layer, in the order of the model.

    Raises
    ------
    UsageError
        If the model is quantised already, or a weight is not finite.
    """
    layers = _layers(dit)
    if not layers:
        raise UsageError("dit: expected a model with linear layers to quantise, got one without")
    quantised = {name: Int8Linear.of(layer) for name, layer in layers.items()}
    seen: dict[str, tuple[float, float]] = {}
    if sample is not None:
        with _observed(layers, quantised, seen), torch.no_grad():
            sample()
    report = []
    for name, layer in layers.items():
        data, scale = quantised[name].packed_weight
        back = data[: layer.out_features, : layer.in_features] * scale[:, None]
        output, outliers = seen.get(name, (None, None))
        report.append(LayerError(name, _relative(back, layer.weight), output, outliers))
        parent, _, child = name.rpartition(".")
        setattr(dit.get_submodule(parent), child, quantised[name])
    return report


def format_report(report: list[LayerError]) -> str:
    """The report as a table, the worst layers first."""
    lines = [f"{'layer':44} {'weight':>8} {'output':>8} {'outliers':>9}"]
    for row in sorted(report, key=lambda row: row.output or row.weight, reverse=True):
        output = "-" if row.output is None else f"{row.output:.2%}"
        outliers = "-" if row.outliers is None else f"{row.outliers:.1f}x"
        lines.append(f"{row.name:44} {row.weight:8.2%} {output:>8} {outliers:>9}")
    return "\n".join(lines)


def _layers(dit: CausalWanDiT) -> dict[str, nn.Linear]:
    return {
        f"blocks.{name}": module
        for name, module in dit.blocks.named_modules()
        if isinstance(module, nn.Linear) and not name.endswith(_KEPT)
    }


@contextmanager
def _observed(
    layers: dict[str, nn.Linear], quantised: dict[str, Int8Linear], seen: dict[str, tuple[float, float]]
) -> Iterator[None]:
    """Compare every call of a layer with its quantised form; the largest error of a layer is kept."""

    def observe(name: str) -> Callable[[nn.Linear, tuple[Tensor, ...], Tensor], None]:
        def hook(layer: nn.Linear, inputs: tuple[Tensor, ...], _: Tensor) -> None:
            x = inputs[0]  # the rest is what the layer ends with
            error = _relative(quantised[name](x), F.linear(x, layer.weight, layer.bias))
            channels = x.detach().float().flatten(0, -2).abs().amax(0)
            ratio = (channels.max() / channels.median().clamp(min=1e-30)).item()
            before = seen.get(name, (0.0, 0.0))
            seen[name] = (max(before[0], error), max(before[1], ratio))

        return hook

    handles = [layer.register_forward_hook(observe(name)) for name, layer in layers.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _relative(actual: Tensor, exact: Tensor) -> float:
    difference = (actual.double() - exact.detach().double()).norm()
    return (difference / exact.detach().double().norm().clamp(min=1e-30)).item()
