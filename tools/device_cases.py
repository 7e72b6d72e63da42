"""What the device report checks and times: small shapes against float64, shapes of Wan 1.3B beside peers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from wavecore import ops
from wavecore.ops import eager, eager_int8, reference, reference_int8

EPS = 1e-6
TOKENS, FRAME, HEADS, HEAD_DIM, FFN = 4680, 1560, 12, 128, 8960
DIM = HEADS * HEAD_DIM


@dataclass(frozen=True)
class Check:
    """`run` gives the error of an operation against float64, and its bound: twice PyTorch's own error."""

    name: str
    run: Callable[[], tuple[float, float]]


@dataclass(frozen=True)
class Comparison:
    """An operation to time, its peers, and what it moves or computes."""

    op: str
    shape: str
    ours: Callable[[], object]
    peers: dict[str, Callable[[], object]]
    bytes: float = 0.0
    operations: float = 0.0


@dataclass
class Inputs:
    """Arguments of the operations for one shape."""

    device: str
    tokens: int
    frames: int
    heads: int
    head_dim: int
    pages: int
    page_tokens: int
    dtype: torch.dtype = torch.bfloat16
    dim: int = field(init=False)

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.dim = self.heads * self.head_dim
        self.x, self.y = self.rows(), self.rows()
        self.shift, self.scale, self.gate = (
            torch.randn(1, self.frames, self.dim, device=self.device, dtype=self.dtype) for _ in range(3)
        )
        self.weight = torch.randn(self.dim, device=self.device, dtype=self.dtype)
        angles = torch.randn(1, self.tokens, self.head_dim // 2, device=self.device)
        self.rope = torch.stack((angles.cos(), angles.sin()), -1)
        self.k_pages, self.v_pages = self.some_pages(), self.some_pages()
        order = torch.randperm(self.pages, device=self.device)
        self.table = order[None].int()
        self.lengths = torch.full_like(self.table, self.page_tokens)
        self.ids = self.table[:, : -(-self.tokens // self.page_tokens)].contiguous()

    def rows(self) -> Tensor:
        return torch.randn(1, self.tokens, self.dim, device=self.device, dtype=self.dtype)

    def some_pages(self) -> Tensor:
        shape = (self.pages, self.page_tokens, self.heads, self.head_dim)
        return torch.randn(shape, device=self.device, dtype=self.dtype)

    @property
    def q(self) -> Tensor:
        return self.x.unflatten(-1, (self.heads, self.head_dim))

    def write(self) -> tuple[Any, ...]:
        """Arguments of the page write, with pages of their own."""
        return (
            *(self.x, self.y, self.x, self.weight, self.weight, self.rope),
            *(self.k_pages.clone(), self.v_pages.clone(), self.ids, EPS),
        )

    def key_pages(self) -> ops.QuantizedKeyPages:
        made = ops.empty_key_pages(*self.k_pages.shape, device=self.device)
        ops.quantize_key_pages(self.k_pages, self.table[0], self.lengths[0], made)
        return made


def _exact(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """The float64 reference on the CPU, of the same numbers widened to float32 so that nothing is rounded."""

    def widened(value: Any) -> Any:
        if isinstance(value, Tensor):
            return value.cpu().float() if value.dtype == torch.bfloat16 else value.cpu()
        return value

    return function(*(widened(value) for value in arguments))


def _error(actual: Tensor, exact: Tensor) -> float:
    return (actual.cpu().double() - exact.double()).abs().nan_to_num(torch.inf).max().item()


def _against(
    name: str, ours: Callable[..., Any], plain: Callable[..., Any], exact: Any, arguments: Any
) -> Check:
    def run() -> tuple[float, float]:
        truth = _exact(exact, arguments)
        return _error(ours(*arguments), truth), 2 * _error(plain(*arguments), truth) + 1e-4

    return Check(name, run)


def checks(device: str) -> Iterator[Check]:
    """Ragged sizes, several pages, one of them partly filled."""
    data = Inputs(device, tokens=390, frames=3, heads=4, head_dim=128, pages=5, page_tokens=130)
    data.lengths[0, 3] = 77
    data.lengths[0, 1] = 0
    norm = (data.x, data.shift, data.scale, EPS)
    yield _against(
        "layer_norm_modulate",
        ops.layer_norm_modulate,
        eager.layer_norm_modulate,
        reference.layer_norm_modulate,
        norm,
    )
    gate = (data.x, data.y, data.gate)
    yield _against("gate_residual", ops.gate_residual, eager.gate_residual, reference.gate_residual, gate)
    rms = (data.x, data.weight, EPS)
    yield _against("rms_norm", ops.rms_norm, eager.rms_norm, reference.rms_norm, rms)
    yield _against("gelu", ops.gelu, eager_int8.gelu, reference_int8.gelu, (data.x,))
    for part, name in enumerate(("queries", "keys", "values")):
        yield Check(f"qkv_page_write ({name})", lambda part=part: _page_write(data, part))
    yield Check("rope_shift", lambda: _shift(data))
    attention = (data.q, data.k_pages, data.v_pages, data.table, data.lengths, HEAD_DIM**-0.5)
    yield _against(
        "paged_attention", ops.paged_attention, eager.paged_attention, reference.paged_attention, attention
    )
    yield Check("paged_attention (float16)", lambda: _half_attention(attention))
    yield Check("paged_attention_int8", lambda: _int8_attention(data))
    yield Check("quantize_tokens", lambda: _quantised(data))
    yield Check("int8_linear", lambda: _int8_linear(data))
    yield Check("renoise_step", lambda: _step(device))


def _page_write(data: Inputs, part: int) -> tuple[float, float]:
    def run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Tensor:
        q = function(*arguments)
        pages = (q, arguments[6], arguments[7])[part]
        return q if part == 0 else pages[data.ids[0].to(pages.device).long()]

    ours, plain = run(ops.qkv_page_write, data.write()), run(eager.qkv_page_write, data.write())
    wide = tuple(
        v.cpu().float()
        if isinstance(v, Tensor) and v.dtype == torch.bfloat16
        else v.cpu()
        if isinstance(v, Tensor)
        else v
        for v in data.write()
    )
    exact = run(reference.qkv_page_write, wide)
    return _error(ours, exact), 2 * _error(plain, exact) + 1e-4


def _shift(data: Inputs) -> tuple[float, float]:
    angles = torch.randn(len(data.ids[0]), data.page_tokens, data.head_dim // 2, device=data.device)
    rope = torch.stack((angles.cos(), angles.sin()), -1)
    results = []
    for function, move in ((ops.rope_shift, False), (eager.rope_shift, False), (reference.rope_shift, True)):
        pages, source = torch.zeros_like(data.k_pages), data.k_pages
        ids, angles_used = data.ids[0], rope
        if move:
            pages, source, ids, angles_used = pages.cpu().float(), source.cpu().float(), ids.cpu(), rope.cpu()
        function(source, ids, pages, ids, angles_used)
        results.append(pages)
    return _error(results[0], results[2]), 2 * _error(results[1], results[2]) + 1e-4


def _half_attention(arguments: tuple[Any, ...]) -> tuple[float, float]:
    half = tuple(v.half() if isinstance(v, Tensor) and v.is_floating_point() else v for v in arguments)
    exact = reference.paged_attention(
        *(
            v.cpu().float()
            if isinstance(v, Tensor) and v.is_floating_point()
            else v.cpu()
            if isinstance(v, Tensor)
            else v
            for v in half
        )
    )
    return _error(ops.paged_attention(*half), exact), 2 * _error(eager.paged_attention(*half), exact) + 1e-4


def _int8_attention(data: Inputs) -> tuple[float, float]:
    """One minus the cosine to attention that quantises nothing; the bound is a cosine of 0.9995."""
    ours = ops.paged_attention_int8(data.q, data.key_pages(), data.v_pages, data.table, data.lengths)
    arguments = (data.q, data.k_pages, data.v_pages, data.table, data.lengths, HEAD_DIM**-0.5)
    exact = _exact(reference.paged_attention, arguments)
    cosine = F.cosine_similarity(ours.cpu().double().flatten(), exact.double().flatten(), dim=0).item()  # type: ignore[union-attr]
    return 1 - cosine, 5e-4


def _quantised(data: Inputs) -> tuple[float, float]:
    """Largest distance of an integer from the reference's: the neighbour, where a quotient is near a tie."""
    ours, exact = ops.quantize_tokens(data.x), reference_int8.quantize_tokens(data.x.cpu(), False)
    return (ours.data.cpu().int() - exact[0].int()).abs().max().item(), 1


def _int8_linear(data: Inputs) -> tuple[float, float]:
    """Relative error against the layer in float64; 1.5 % is the bound."""
    weight = torch.randn(512, data.dim, device=data.device) * data.dim**-0.5
    bias = torch.randn(512, device=data.device)
    ours = ops.int8_linear(data.x, ops.pack_int8(weight), bias).cpu().double()
    exact = F.linear(data.x.cpu().double(), weight.cpu().double(), bias.cpu().double())
    return ((ours - exact).norm() / exact.norm()).item(), 0.015


def _step(device: str) -> tuple[float, float]:
    latents = [torch.randn(2, 16, 3, 20, 30, device=device) for _ in range(3)]
    levels = [torch.rand(2, 3, device=device) for _ in range(2)]
    exact = reference_int8.renoise_step(*(t.cpu() for t in (*latents, *levels)))
    return max(map(_error, ops.renoise_step(*latents, *levels), exact)), 1e-5


def comparisons(device: str) -> Iterator[Comparison]:
    """A chunk of three latent frames with a context of eight chunks."""
    data = Inputs(device, TOKENS, 3, HEADS, HEAD_DIM, pages=24, page_tokens=FRAME)
    moved = data.x.nbytes
    norm = (data.x, data.shift, data.scale, EPS)
    yield Comparison(
        "layer_norm_modulate", "4680 x 1536", lambda: ops.layer_norm_modulate(*norm),
        {"eager": lambda: eager.layer_norm_modulate(*norm)}, bytes=2 * moved,
    )  # fmt: skip
    yield Comparison(
        "gate_residual", "4680 x 1536", lambda: ops.gate_residual(data.x, data.y, data.gate),
        {"eager": lambda: eager.gate_residual(data.x, data.y, data.gate)}, bytes=3 * moved,
    )  # fmt: skip
    write = data.write()
    yield Comparison(
        "qkv_page_write", "4680 x 1536", lambda: ops.qkv_page_write(*write),
        {"eager": lambda: eager.qkv_page_write(*write)}, bytes=6 * moved + data.rope.nbytes,
    )  # fmt: skip
    yield from _linear_comparisons(data)
    yield from _attention_comparisons(data)


def _linear_comparisons(data: Inputs) -> Iterator[Comparison]:
    for inputs, outputs in ((DIM, FFN), (FFN, DIM), (DIM, DIM)):
        weight = torch.randn(outputs, inputs, device=data.device, dtype=data.dtype) * inputs**-0.5
        bias = torch.randn(outputs, device=data.device, dtype=data.dtype)
        packed = ops.pack_int8(weight)
        x = torch.randn(1, TOKENS, inputs, device=data.device, dtype=data.dtype)
        yield Comparison(
            "int8_linear",
            f"{TOKENS} x {inputs} -> {outputs}, quantisation included",
            lambda x=x, packed=packed, bias=bias: ops.int8_linear(x, packed, bias),
            {
                "linear_bf16": lambda x=x, weight=weight, bias=bias: F.linear(x, weight, bias),
                "int_mm_eager": lambda x=x, packed=packed, bias=bias: eager_int8.int8_linear(
                    *eager_int8.quantize_tokens(x, False), *packed, bias, None, None, x.dtype
                ),
            },
            operations=2.0 * TOKENS * inputs * outputs,
        )


def _attention_comparisons(data: Inputs) -> Iterator[Comparison]:
    arguments = (data.q, data.k_pages, data.v_pages, data.table, data.lengths)
    ready = data.q.transpose(1, 2).contiguous()
    keys, values = (
        pages[data.table[0].long()].flatten(0, 1)[None].transpose(1, 2).contiguous()
        for pages in (data.k_pages, data.v_pages)
    )
    peers: dict[str, Callable[[], object]] = {
        "sdpa_contiguous": lambda: F.scaled_dot_product_attention(ready, keys, values),
        "gather_sdpa": lambda: eager.paged_attention(*arguments, HEAD_DIM**-0.5),
        **_installed_attention(ready, keys, values),
    }
    operations = 4.0 * TOKENS * keys.shape[2] * DIM
    shape = f"{TOKENS} x {keys.shape[2]}, 12 heads"
    yield Comparison(
        "paged_attention", shape, lambda: ops.paged_attention(*arguments), peers, operations=operations
    )
    pages = data.key_pages()
    yield Comparison(
        "paged_attention_int8",
        shape,
        lambda: ops.paged_attention_int8(data.q, pages, *arguments[2:]),
        {"own_bf16": lambda: ops.paged_attention(*arguments), **peers},
        operations=operations,
    )


def _installed_attention(q: Tensor, k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    """Other people's attention on contiguous tensors [1, h, t, d]."""
    found: dict[str, Callable[[], object]] = {}
    q3, k3, v3 = (part.transpose(1, 2).contiguous() for part in (q, k, v))
    try:
        from flash_attn import flash_attn_func

        found["flash_attn"] = lambda: flash_attn_func(q3, k3, v3)
    except ImportError:
        pass
    try:
        from flash_attn_interface import flash_attn_func as flash3

        found["flash_attn_3"] = lambda: flash3(q3, k3, v3)
    except ImportError:
        pass
    try:
        from sageattention import sageattn

        found["sageattention"] = lambda: sageattn(q, k, v, tensor_layout="HND")
    except ImportError:
        pass
    try:
        import flashinfer

        found["flashinfer"] = lambda: flashinfer.single_prefill_with_kv_cache(q3[0], k3[0], v3[0])
    except ImportError:
        pass
    return found
