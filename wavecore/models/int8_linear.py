"""A linear layer in int8."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from wavecore import ops
from wavecore.ops import PackedInt8, QuantizedTokens


class Int8Linear(nn.Module):
    """A linear layer with int8 weights; its scales stay float32 whatever dtype the model is moved to.

    Parameters
    ----------
    weight : PackedInt8
        As `wavecore.ops.pack_int8` gives it.
    bias : Tensor [outputs]
        Its dtype is that of results for tokens that are already quantised.
    """

    data: Tensor
    scale: Tensor
    bias: Tensor

    def __init__(self, weight: PackedInt8, bias: Tensor) -> None:
        super().__init__()
        self.register_buffer("data", weight.data)
        self.register_buffer("scale", weight.scale)
        self.register_buffer("bias", bias)

    @classmethod
    def of(cls, linear: nn.Linear) -> Int8Linear:
        """The quantised form of a layer."""
        bias = linear.weight.new_zeros(linear.out_features) if linear.bias is None else linear.bias.detach()
        return cls(ops.pack_int8(linear.weight), bias)

    @property
    def packed_weight(self) -> PackedInt8:
        """The weight, as the operations take it."""
        return PackedInt8(self.data, self.scale)

    def forward(
        self,
        x: Tensor | QuantizedTokens,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
        gelu: bool = False,
    ) -> Tensor:
        """`wavecore.ops.int8_linear` with the layer's weight and bias."""
        return ops.int8_linear(
            x,
            self.packed_weight,
            self.bias,
            residual=residual,
            gate=gate,
            gelu=gelu,
            dtype=self.bias.dtype if residual is None else residual.dtype,
        )

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Int8Linear:
        scale = self.scale
        super()._apply(fn, recurse)
        self.scale = scale.to(self.data.device)
        return self


def adopt_int8(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Give a model int8 layers where the tensors of a state dict are those of one.

    A model that is made from its configuration has none, and could not take the state of a quantised one.
    """
    for name, data in tensors.items():
        layer, _, part = name.rpartition(".")
        if part == "data" and data.dtype == torch.int8:
            parent, _, child = layer.rpartition(".")
            packed = PackedInt8(data, tensors[f"{layer}.scale"])
            setattr(model.get_submodule(parent), child, Int8Linear(packed, tensors[f"{layer}.bias"]))
