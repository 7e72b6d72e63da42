"""Layers of the causal Wan DiT, under the names of the original checkpoints, in their dense form."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from wavecore import ops
from wavecore.models.dit_config import DiTConfig
from wavecore.models.int8_linear import Int8Linear
from wavecore.models.rope import apply_rope
from wavecore.ops import OutputWeights, QuantizedTokens, QueryWeights


class RMSNorm(nn.Module):
    """Root-mean-square norm over all heads at once."""

    def __init__(self, dim: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, self.eps)


class Linear(nn.Linear):
    """Linear layer that ends, in the same pass, with GELU or with gate and residual.

    On a CPU in float32 it gives the same bits for any number of threads and any rows beside a row, which a
    library's matrix product need not.
    """

    def forward(
        self,
        x: Tensor,
        residual: Tensor | None = None,
        gate: Tensor | None = None,
        gelu: bool = False,
    ) -> Tensor:
        return ops.linear(x, self.weight, self.bias, gelu=gelu, residual=residual, gate=gate)


class FeedForward(nn.Sequential):
    """Two linear layers with GELU between them, under the names of the original checkpoints."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__(Linear(dim, hidden), nn.GELU(approximate="tanh"), Linear(hidden, dim))

    def forward(
        self, x: Tensor | QuantizedTokens, residual: Tensor | None = None, gate: Tensor | None = None
    ) -> Tensor:
        first, _, last = self
        if isinstance(last, Int8Linear):
            return last(first(x), residual, gate, gelu=True)
        return last(first(x, gelu=True), residual, gate)


class Attention(nn.Module):
    """Projections of one attention; `q`, `k`, `v`, `o`, `norm_q`, `norm_k` as in Wan."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q = Linear(config.dim, config.dim)
        self.k = Linear(config.dim, config.dim)
        self.v = Linear(config.dim, config.dim)
        self.o = Linear(config.dim, config.dim)
        self.norm_q = RMSNorm(config.dim, config.eps)
        self.norm_k = RMSNorm(config.dim, config.eps)

    def split(self, x: Tensor) -> Tensor:
        """[..., D] to [..., h, d]."""
        return x.unflatten(-1, (self.heads, -1))


class Block(nn.Module):
    """One transformer layer: self-attention, cross-attention, feed-forward."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.modulation = _modulation_table(6, config.dim)
        self.self_attn = Attention(config)
        self.norm3 = nn.LayerNorm(config.dim, config.eps)
        self.cross_attn = Attention(config)
        self.ffn = FeedForward(config.dim, config.ffn_dim)

    @property
    def runs_whole(self) -> bool:
        """Whether the linear layers are plain, and nobody watches what goes in and out of each."""
        # Asked twice a layer and pass, so past the attributes of modules, which are slow.
        attn, cross, ffn = self.self_attn._modules, self.cross_attn._modules, self.ffn._modules
        for layer in (
            *(attn["q"], attn["k"], attn["v"], attn["o"]),
            *(cross["q"], cross["o"], ffn["0"], ffn["2"]),
        ):
            if type(layer) is not Linear or layer._forward_hooks or layer._forward_pre_hooks:
                return False
        return True

    def query_weights(self) -> QueryWeights:
        """Weights of the first half, for `wavecore.ops.block_queries`."""
        attn = self.self_attn
        parts = (attn.q, attn.k, attn.v, attn.norm_q, attn.norm_k)
        return QueryWeights(*(weight for part in parts for weight in _weights(part)))

    def output_weights(self) -> OutputWeights:
        """Weights of the second half, for `wavecore.ops.block_output`."""
        cross, ffn = self.cross_attn, self.ffn
        parts = (self.self_attn.o, self.norm3, cross.q, cross.norm_q, cross.o, ffn[0], ffn[2])
        return OutputWeights(*(weight for part in parts for weight in _weights(part)))

    def text_keys(self, text: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-attention keys and values [b, l, h, d] of embedded text [b, l, D]."""
        attn = self.cross_attn
        return attn.split(attn.norm_k(attn.k(text))), attn.split(attn.v(text))

    def cross(self, x: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Residual cross-attention; a text group g of [b * g, l, h, d] serves its own tokens."""
        attn = self.cross_attn
        q = attn.split(attn.norm_q(attn.q(self.norm3(x))))
        grouped = q.reshape(keys.shape[0], -1, *q.shape[-2:])
        return attn.o(ops.attention(grouped, keys, values).reshape(x.shape), residual=x)

    def modulated(self, x: Tensor, shift: Tensor, scale: Tensor) -> Tensor | QuantizedTokens:
        """Norm and modulation before a linear layer, quantised where that layer is."""
        run = ops.layer_norm_modulate
        if isinstance(self.self_attn.q, Int8Linear):
            run = ops.layer_norm_modulate_quantize
        return run(x, shift, scale, self.eps)

    def forward(
        self, x: Tensor, modulation: Tensor, rope: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Dense form: the tokens of a whole clip attend to each other under `mask`."""
        shift1, scale1, gate1, shift2, scale2, gate2 = (modulation + self.modulation).unbind(2)
        attn = self.self_attn
        n = ops.layer_norm_modulate(x, shift1, scale1, self.eps)
        q = apply_rope(attn.split(attn.norm_q(attn.q(n))), rope)
        k = apply_rope(attn.split(attn.norm_k(attn.k(n))), rope)
        x = ops.gate_residual(x, attn.o(ops.attention(q, k, attn.split(attn.v(n)), mask).flatten(-2)), gate1)
        x = self.cross(x, keys, values)
        return ops.gate_residual(x, self.ffn(ops.layer_norm_modulate(x, shift2, scale2, self.eps)), gate2)


def _weights(layer: nn.Module) -> Iterable[Tensor]:
    """Weight and, where there is one, bias: attributes of modules take longer than a small kernel's start."""
    return cast(Iterable[Tensor], layer._parameters.values())


def _modulation_table(rows: int, dim: int) -> nn.Parameter:
    table = torch.empty(1, rows, dim)
    if not table.is_meta:  # there a normal draw imports torch's compiler, which takes seconds
        nn.init.normal_(table, std=dim**-0.5)
    return nn.Parameter(table)


class Head(nn.Module):
    """Final norm, modulation by the un-projected time embedding, and projection to pixels."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.eps = config.eps
        self.head = Linear(config.dim, config.out_channels * config.patch[1] * config.patch[2])
        self.modulation = _modulation_table(2, config.dim)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        shift, scale = (self.modulation + time[:, :, None]).unbind(2)
        return self.head(ops.layer_norm_modulate(x, shift, scale, self.eps))
