"""Checks of the device report: operations on small shapes against float64, and what only a device shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from device_inputs import EPS, Inputs, takes_float8
from torch import Tensor

from wavecore import ops
from wavecore.ops import eager, eager_int8, reference, reference_int8


@dataclass(frozen=True)
class Check:
    """`run` gives the error of an operation against float64, and its bound: twice PyTorch's own error."""

    name: str
    run: Callable[[], tuple[float, float]]


def widened(value: Any) -> Any:
    """A copy on the CPU, low precision in float32, so that the reference rounds nothing."""
    if not isinstance(value, Tensor):
        return value
    low = value.dtype in (torch.bfloat16, torch.float16)
    return value.detach().cpu().to(torch.float32 if low else value.dtype, copy=True)


def _exact(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return function(*map(widened, arguments))


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
    """Ragged sizes, several pages, one of them partly filled and NaN behind that, one empty."""
    data = Inputs(device, tokens=390, frames=3, heads=4, head_dim=128, pages=5, page_tokens=130)
    data.leave_a_tail()
    yield from _rowwise_checks(data)
    for part, name in enumerate(("queries", "keys", "values", "keys before rotation", "a peer's keys")):
        yield Check(f"qkv_page_write ({name})", lambda part=part: _page_write(data, part))
    yield Check("rope_shift", lambda: _shift(data))
    yield from _attention_checks(data, "")
    small = Inputs(device, tokens=70, frames=1, heads=2, head_dim=64, pages=6, page_tokens=48)
    small.leave_a_tail()
    yield from _attention_checks(small, ", pages of 48 tokens, head size 64")
    odd = Inputs(device, tokens=70, frames=1, heads=2, head_dim=40, pages=5, page_tokens=130)
    yield from _attention_checks(odd, ", head size 40")
    yield Check("paged_attention (float16)", lambda: _half_attention(data))
    yield Check("paged_attention (nothing to attend to)", lambda: _empty(data))
    yield Check("int8_linear", lambda: _int8_linear(data, 512))
    yield Check("int8_linear (gate and residual)", lambda: _gated_int8_linear(data))
    yield Check("renoise_step", lambda: _step(device))
    if device == "cuda":
        yield Check("on a stream of its own", lambda: _side_stream(data))
        yield Check("in a CUDA graph", lambda: _graph(data))
        yield Check("offsets beyond 32 bits (pages)", lambda: _far_page(data))
        yield Check("offsets beyond 32 bits (rows)", lambda: _far_rows(data))


def _rowwise_checks(data: Inputs) -> Iterator[Check]:
    norm = (data.x, data.shift, data.scale, EPS)
    yield _against(
        "layer_norm_modulate", ops.layer_norm_modulate, eager.layer_norm_modulate,
        reference.layer_norm_modulate, norm,
    )  # fmt: skip
    gate = (data.x, data.y, data.gate)
    yield _against("gate_residual", ops.gate_residual, eager.gate_residual, reference.gate_residual, gate)
    rms = (data.x, data.weight, EPS)
    yield _against("rms_norm", ops.rms_norm, eager.rms_norm, reference.rms_norm, rms)
    yield _against("gelu", ops.gelu, eager_int8.gelu, reference_int8.gelu, (data.x,))
    weight = torch.randn(96, data.dim, device=data.device, dtype=data.dtype) * data.dim**-0.5
    linear = (data.x, weight, None, True, None, None)
    yield _against("linear", torch.ops.wavecore.linear, eager.linear, reference.linear, linear)
    yield Check(
        "quantize_tokens",
        lambda: _integers(
            ops.quantize_tokens(data.x), reference_int8.quantize_tokens(widened(data.x), False)
        ),
    )
    yield Check(
        "layer_norm_modulate_quantize",
        lambda: _integers(
            ops.layer_norm_modulate_quantize(*norm), _exact(reference_int8.layer_norm_modulate_quantize, norm)
        ),
    )
    yield Check("quantize_key_pages", lambda: _key_pages(data))
    if takes_float8(data.device):
        yield Check("quantize_value_pages", lambda: _value_pages(data))


def _attention_checks(data: Inputs, what: str) -> Iterator[Check]:
    arguments = data.attention()
    yield _against(
        f"paged_attention{what}",
        ops.paged_attention,
        eager.paged_attention,
        reference.paged_attention,
        arguments,
    )
    yield Check(f"paged_attention (log-sum-exp{what})", lambda: _lse(data))
    yield Check(f"paged_attention_int8{what}", lambda: _int8_attention(data))
    if takes_float8(data.device):
        yield Check(f"paged_attention_int8 (float8 values{what})", lambda: _float8_attention(data))


def _integers(ours: ops.QuantizedTokens, exact: tuple[Tensor, Tensor]) -> tuple[float, float]:
    """Largest distance of an integer from the reference's: the neighbour, where a quotient is near a tie."""
    return (ours.data.cpu().int() - exact[0].int()).abs().max().item(), 1


def _key_pages(data: Inputs) -> tuple[float, float]:
    ours, exact = data.key_pages(), ops.empty_key_pages(*data.k_pages.shape)
    reference_int8.quantize_key_pages(
        widened(data.k_pages), data.table[0].cpu(), data.lengths[0].cpu(), *exact
    )
    return _integers(ops.QuantizedTokens(ours.data, ours.scale), (exact.data, exact.scale))


def _value_pages(data: Inputs) -> tuple[float, float]:
    """Neighbours in float8 are neighbours as integers."""
    ours, exact = data.value_pages(), ops.empty_value_pages(*data.v_pages.shape)
    reference_int8.quantize_value_pages(
        widened(data.v_pages), data.table[0].cpu(), data.lengths[0].cpu(), *exact
    )
    as_integers = (ops.QuantizedTokens(pages.data.view(torch.int8), pages.scale) for pages in (ours, exact))
    return _integers(*as_integers)


def _page_write(data: Inputs, part: int) -> tuple[float, float]:
    def run(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Tensor:
        q = function(*arguments)
        pages = (q, arguments[6], arguments[7], arguments[10], arguments[12])[part]
        return q if part == 0 else pages[data.ids[0].to(pages.device).long()]

    ours, plain = run(ops.qkv_page_write, data.write()), run(eager.qkv_page_write, data.write())
    exact = run(reference.qkv_page_write, tuple(map(widened, data.write())))
    return _error(ours, exact), 2 * _error(plain, exact) + 1e-4


def _shift(data: Inputs) -> tuple[float, float]:
    angles = torch.randn(len(data.ids[0]), data.page_tokens, data.head_dim // 2, device=data.device)
    source = data.k_pages.nan_to_num()
    arguments = (source, data.ids[0], torch.zeros_like(source), data.ids[0])
    rope = torch.stack((angles.cos(), angles.sin()), -1)
    exact = tuple(map(widened, (*arguments, rope)))
    reference.rope_shift(*exact)
    errors = []
    for function in (ops.rope_shift, eager.rope_shift):
        arguments[2].zero_()
        function(*arguments, rope)
        errors.append(_error(arguments[2], exact[2]))
    return errors[0], 2 * errors[1] + 1e-4


def _lse(data: Inputs) -> tuple[float, float]:
    _, ours = ops.paged_attention(*data.attention(), return_lse=True)
    _, exact = _exact(reference.paged_attention_lse, data.attention())
    return _error(ours, exact), 1e-3


def _empty(data: Inputs) -> tuple[float, float]:
    """A context without a key gives 0, and minus infinity for the log-sum-exp."""
    *before, lengths, scale = data.attention()
    out, lse = ops.paged_attention(*before, torch.zeros_like(lengths), scale, return_lse=True)
    wrong = out.cpu().ne(0).sum() + lse.cpu().ne(-torch.inf).sum()
    return wrong.item(), 0


def _half_attention(data: Inputs) -> tuple[float, float]:
    half = tuple(v.half() if isinstance(v, Tensor) and v.is_floating_point() else v for v in data.attention())
    exact = _exact(reference.paged_attention, half)
    return _error(ops.paged_attention(*half), exact), 2 * _error(eager.paged_attention(*half), exact) + 1e-4


def _int8_attention(data: Inputs) -> tuple[float, float]:
    """One minus the cosine to attention that quantises nothing; the bound is a cosine of 0.9995."""
    q, _, *rest = data.attention()
    ours = ops.paged_attention_int8(q, data.key_pages(), *rest)
    exact = _exact(reference.paged_attention, data.attention())
    cosine = F.cosine_similarity(ours.cpu().double().flatten(), exact.double().flatten(), dim=0).item()  # type: ignore[union-attr]
    return 1 - cosine, 5e-4


def _float8_attention(data: Inputs) -> tuple[float, float]:
    """The same with weights and values in float8; the bound is a cosine of 0.9985."""
    ours = ops.paged_attention_int8(
        data.q, data.key_pages(), data.value_pages(), data.table, data.lengths, data.head_dim**-0.5
    )
    exact = _exact(reference.paged_attention, data.attention())
    cosine = F.cosine_similarity(ours.cpu().double().flatten(), exact.double().flatten(), dim=0).item()  # type: ignore[union-attr]
    return 1 - cosine, 1.5e-3


def _int8_linear(data: Inputs, outputs: int) -> tuple[float, float]:
    """Relative error against the layer in float64; 1.5 % is the bound."""
    weight = torch.randn(outputs, data.dim, device=data.device) * data.dim**-0.5
    bias = torch.randn(outputs, device=data.device)
    ours = ops.int8_linear(data.x, ops.pack_int8(weight), bias).cpu().double()
    exact = F.linear(data.x.cpu().double(), weight.cpu().double(), bias.cpu().double())
    return ((ours - exact).norm() / exact.norm()).item(), 0.015


def _gated_int8_linear(data: Inputs) -> tuple[float, float]:
    weight = torch.randn(data.dim, data.dim, device=data.device) * data.dim**-0.5
    ours = ops.int8_linear(data.x, ops.pack_int8(weight), residual=data.y, gate=data.gate).cpu().double()
    x, weight, y, gate = (t.cpu().double() for t in (data.x, weight, data.y, data.gate))
    exact = y + F.linear(x, weight) * gate.repeat_interleave(data.tokens // data.frames, 1)
    return ((ours - exact).norm() / exact.norm()).item(), 0.015


def _step(device: str) -> tuple[float, float]:
    latents = [torch.randn(2, 16, 3, 20, 30, device=device) for _ in range(3)]
    levels = [torch.rand(2, 3, device=device) for _ in range(2)]
    exact = reference_int8.renoise_step(*(t.cpu() for t in (*latents, *levels)))
    return max(map(_error, ops.renoise_step(*latents, *levels), exact)), 1e-5


def _side_stream(data: Inputs) -> tuple[float, float]:
    """What a stream makes slowly is read behind it by a kernel on that stream, not the default one."""
    large, stream = torch.randn(4096, 4096, device=data.device), torch.cuda.Stream()
    x = torch.zeros_like(data.x)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for _ in range(20):
            large = large @ large * 1e-2
        x.copy_(data.x)
        out = ops.rms_norm(x, data.weight, EPS)
    torch.cuda.synchronize()
    return _error(out, ops.rms_norm(data.x, data.weight, EPS).cpu()), 0


def _graph(data: Inputs) -> tuple[float, float]:
    """A captured graph that is replayed reads its inputs anew."""
    x = data.x.clone()

    def work() -> Tensor:
        q, *pages = data.attention()
        normed = ops.rms_norm(x, data.weight, EPS)
        return ops.paged_attention(normed.unflatten(-1, q.shape[2:]), *pages)

    work()  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = work()
    x.copy_(data.y)
    graph.replay()
    return _error(out, work().cpu()), 0


def _far_page(data: Inputs) -> tuple[float, float]:
    """A page that begins more than 2^31 elements into the pool: the same as one nearby."""
    stride = 2**31 + 8
    pool = torch.empty(stride + 64, device=data.device, dtype=data.dtype)
    pages = pool.as_strided((2, 4, 1, 8), (stride, 8, 8, 1))
    near = torch.randn(1, 4, 1, 8, device=data.device, dtype=data.dtype)
    pages[1:] = near
    q = torch.randn(1, 3, 1, 8, device=data.device, dtype=data.dtype)
    table, lengths = (torch.tensor([[n]], dtype=torch.int32, device=data.device) for n in (1, 4))
    far = ops.paged_attention(q, pages, pages, table, lengths)
    return _error(far, ops.paged_attention(q, near, near, table - 1, lengths).cpu()), 0


def _far_rows(data: Inputs) -> tuple[float, float]:
    """Rows on both sides of the 2^31st element."""
    x = torch.empty(2**31 // data.dim + 64, data.dim, device=data.device, dtype=data.dtype)
    x[-128:] = data.x[0, :128]
    out = ops.rms_norm(x, data.weight, EPS)[-128:]
    return _error(out, ops.rms_norm(data.x[0, :128], data.weight, EPS).cpu()), 0
