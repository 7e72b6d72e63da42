"""What the device report times: operations at the shapes of Wan, beside PyTorch and others' kernels."""

from __future__ import annotations

import importlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from device_inputs import EPS, Inputs, takes_float8
from torch import Tensor

from wavecore import ops
from wavecore.ops import eager, eager_int8

Timed = Callable[[], object]
SECONDS = 2.0  # longest time for one function
# Bytes written before each run: more than any second-level cache, and for a quarter of a millisecond, while
# which the host gives the device its work: the time that this takes would be measured otherwise.
FLUSHED = 2**30


@dataclass(frozen=True)
class Shape:
    """A chunk of latent frames and its context."""

    name: str
    heads: int
    ffn: int
    head_dim: int = 128
    frames: int = 3
    frame_tokens: int = 1560
    pages: int = 24

    @property
    def tokens(self) -> int:
        return self.frames * self.frame_tokens


WAN_1_3B, WAN_14B = Shape("1.3B", 12, 8960), Shape("14B", 40, 13824)


@dataclass(frozen=True)
class Comparison:
    """An operation to time, its peers, and what it moves or computes."""

    op: str
    shape: str
    ours: Timed
    peers: dict[str, Timed] = field(default_factory=dict)
    bytes: float = 0.0
    operations: float = 0.0


def milliseconds(function: Timed, repeats: int = 20) -> dict[str, float]:
    """Median and quartiles on the device's own clock, with its second-level cache flushed before each run."""
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device="cuda")
    for _ in range(3):
        function()
    torch.cuda.synchronize()
    times: list[float] = []
    began = time.monotonic()
    while len(times) < 3 or (len(times) < repeats and time.monotonic() - began < SECONDS):
        flush.zero_()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end))
    quartiles = statistics.quantiles(times, n=4)
    return dict(zip(("lower", "median", "upper"), quartiles, strict=True))


def ceilings(size: int = 8192, elements: int = 2**29) -> dict[str, float]:
    """Rates of this device: products of bfloat16 and int8 matrices in operations, copy in bytes, a second."""
    a, b = torch.randn(2, size, size, device="cuda", dtype=torch.bfloat16)
    whole = torch.randint(-127, 127, (2, size, size), device="cuda", dtype=torch.int8)
    source = torch.empty(elements, dtype=torch.bfloat16, device="cuda")
    target = torch.empty_like(source)
    product = milliseconds(lambda: a @ b)["median"]
    integer = milliseconds(lambda: torch._int_mm(whole[0], whole[1].T))["median"]
    copy = milliseconds(lambda: target.copy_(source))["median"]
    return {
        "bf16": 2 * size**3 / product * 1e3,
        "int8": 2 * size**3 / integer * 1e3,
        "bytes": 2 * source.nbytes / copy * 1e3,
    }


def compare(case: Comparison) -> dict[str, Any]:
    """Ours and each peer in one row."""
    ours = milliseconds(case.ours)
    row: dict[str, Any] = {"op": case.op, "shape": case.shape, "milliseconds": ours}
    if case.operations:
        row["operations_per_second"] = case.operations / ours["median"] * 1e3
    if case.bytes:
        row["bytes_per_second"] = case.bytes / ours["median"] * 1e3
    for name, peer in case.peers.items():
        try:
            theirs = milliseconds(peer)
            row[name] = {"milliseconds": theirs, "ratio": theirs["median"] / ours["median"]}
        except Exception as problem:  # a peer that cannot take the shape is said so
            row[name] = {"problem": f"{type(problem).__name__}: {str(problem)[:120]}"}
    return row


def comparisons(device: str, shapes: tuple[Shape, ...] = (WAN_1_3B, WAN_14B)) -> Iterator[Comparison]:
    """Attention and int8 layers first, since most depends on them."""
    for shape in shapes:
        data = Inputs(
            device, shape.tokens, shape.frames, shape.heads, shape.head_dim, shape.pages, shape.frame_tokens
        )
        yield from _attention_comparisons(data, shape)
        yield from _linear_comparisons(data, shape)
        yield from _rowwise_comparisons(data, shape)


def _attention_comparisons(data: Inputs, shape: Shape) -> Iterator[Comparison]:
    arguments = data.attention()
    q, k, v = contiguous(data)
    keys = k.shape[2]
    operations = 4.0 * data.tokens * keys * data.dim
    where = f"{shape.name}, {data.tokens} x {keys}, {data.heads} heads"
    peers: dict[str, Timed] = {
        "sdpa_contiguous": lambda: F.scaled_dot_product_attention(q, k, v),
        "gather_sdpa": lambda: eager.paged_attention(*arguments),
    }
    yield Comparison(
        "paged_attention", where, lambda: ops.paged_attention(*arguments), peers, operations=operations
    )
    pages = data.key_pages()
    yield Comparison(
        "paged_attention_int8",
        where,
        lambda: ops.paged_attention_int8(data.q, pages, *arguments[2:]),
        {"own_bf16": lambda: ops.paged_attention(*arguments)},
        operations=operations,
    )
    if takes_float8(data.device):
        values = data.value_pages()
        yield Comparison(
            "paged_attention_int8 (float8 values)",
            where,
            lambda: ops.paged_attention_int8(data.q, pages, values, *arguments[3:]),
            {"own_bf16": lambda: ops.paged_attention(*arguments)},
            operations=operations,
        )


def _linear_comparisons(data: Inputs, shape: Shape) -> Iterator[Comparison]:
    for inputs, outputs in ((data.dim, shape.ffn), (shape.ffn, data.dim), (data.dim, data.dim)):
        weight = torch.randn(outputs, inputs, device=data.device, dtype=data.dtype) * inputs**-0.5
        bias = torch.randn(outputs, device=data.device, dtype=data.dtype)
        packed = ops.pack_int8(weight)
        x = torch.randn(1, data.tokens, inputs, device=data.device, dtype=data.dtype)
        yield Comparison(
            "int8_linear",
            f"{shape.name}, {data.tokens} x {inputs} -> {outputs}, quantisation included",
            lambda x=x, packed=packed, bias=bias: ops.int8_linear(x, packed, bias),
            {
                "linear_bf16": lambda x=x, weight=weight, bias=bias: F.linear(x, weight, bias),
                "int_mm_eager": lambda x=x, packed=packed, bias=bias: eager_int8.int8_linear(
                    *eager_int8.quantize_tokens(x, False), *packed, bias, None, None, x.dtype
                ),
            },
            operations=2.0 * data.tokens * inputs * outputs,
        )


def _rowwise_comparisons(data: Inputs, shape: Shape) -> Iterator[Comparison]:
    where, moved = f"{shape.name}, {data.tokens} x {data.dim}", data.x.nbytes
    norm = (data.x, data.shift, data.scale, EPS)
    gate = (data.x, data.y, data.gate)
    write = (*data.write()[:10], None, None, None, None, None)
    for op, ours, plain, arguments, amount in (
        ("layer_norm_modulate", ops.layer_norm_modulate, eager.layer_norm_modulate, norm, 2.0),
        ("gate_residual", ops.gate_residual, eager.gate_residual, gate, 3.0),
        ("rms_norm", ops.rms_norm, eager.rms_norm, (data.x, data.weight, EPS), 2.0),
        ("gelu", ops.gelu, eager_int8.gelu, (data.x,), 2.0),
        ("qkv_page_write", ops.qkv_page_write, eager.qkv_page_write, write, 6.0),
    ):
        extra = data.rope.nbytes if op == "qkv_page_write" else 0
        yield Comparison(
            op,
            where,
            lambda ours=ours, arguments=arguments: ours(*arguments),
            {"eager": lambda plain=plain, arguments=arguments: plain(*arguments)},
            bytes=amount * moved + extra,
        )
    yield Comparison("quantize_tokens", where, lambda: ops.quantize_tokens(data.x), bytes=1.5 * moved)


def contiguous(data: Inputs) -> tuple[Tensor, Tensor, Tensor]:
    """Query, and keys and values gathered from the pages, each [1, h, t, d]."""
    keys, values = (
        pages[data.table[0].long()].flatten(0, 1)[None].transpose(1, 2).contiguous()
        for pages in (data.k_pages, data.v_pages)
    )
    return data.q.transpose(1, 2).contiguous(), keys, values


def peers(device: str, shape: Shape = WAN_1_3B) -> Iterator[tuple[str, Callable[[], Timed]]]:
    """Other people's attention: a name, and what imports it and makes the call; some compile for minutes."""
    data = Inputs(
        device, shape.tokens, shape.frames, shape.heads, shape.head_dim, shape.pages, shape.frame_tokens
    )
    q, k, v = contiguous(data)
    q3, k3, v3 = (part.transpose(1, 2).contiguous() for part in (q, k, v))

    def function(module: str, name: str) -> Callable[..., object]:
        return getattr(importlib.import_module(module), name)  # type: ignore[no-any-return]

    def flash() -> Timed:
        call = function("flash_attn", "flash_attn_func")
        return lambda: call(q3, k3, v3)

    def flash_3() -> Timed:
        call = function("flash_attn_interface", "flash_attn_func")
        return lambda: call(q3, k3, v3)

    def sage() -> Timed:
        call = function("sageattention", "sageattn")
        return lambda: call(q, k, v, tensor_layout="HND")

    def flashinfer() -> Timed:
        call = function("flashinfer", "single_prefill_with_kv_cache")
        return lambda: call(q3[0], k3[0], v3[0])

    def vllm() -> Timed:
        """Its paged kernel in Triton, on pages of 16 tokens in order."""
        call = function("vllm.v1.attention.ops.triton_unified_attention", "unified_attention")
        pages_k, pages_v = (part[0].unflatten(0, (-1, 16)).contiguous() for part in (k3, v3))
        numbers = {"device": device, "dtype": torch.int32}
        table = torch.arange(len(pages_k), **numbers)[None]  # type: ignore[call-overload]
        starts = torch.tensor([0, data.tokens], **numbers)  # type: ignore[call-overload]
        lengths = torch.tensor([k3.shape[1]], **numbers)  # type: ignore[call-overload]
        out = torch.empty_like(q3[0])
        return lambda: call(
            q=q3[0], k=pages_k, v=pages_v, out=out, cu_seqlens_q=starts, max_seqlen_q=data.tokens,
            seqused_k=lengths, max_seqlen_k=k3.shape[1], softmax_scale=data.head_dim**-0.5, causal=True,
            window_size=(-1, -1), block_table=table, softcap=0,
            q_descale=None, k_descale=None, v_descale=None,
        )  # fmt: skip

    for make in (flash_3, flash, sage, vllm, flashinfer):
        yield make.__name__, make
