"""The operations as PyTorch sees them: schema, fake implementation, compilation, export."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.blocks import output_arguments, query_arguments
from support.ops import Context, PageWrite, error, rope_table
from torch import Tensor

from wavecore import ops


def clean(arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments whose pages hold no NaN, which are compared in vain."""
    return {
        name: value.zero_() if isinstance(value, Tensor) and name.endswith("_pages") else value
        for name, value in arguments.items()
    }


def samples() -> dict[str, tuple[torch._ops.OpOverload, tuple[object, ...]]]:
    """Operation and arguments by name; inputs that are not contiguous where that may matter."""
    torch.manual_seed(0)
    names = torch.ops.wavecore
    x, y = torch.randn(2, 2, 6, 96)[..., ::2]
    modulation = torch.randn(2, 3, 48)
    write, plain = PageWrite(), PageWrite(unroped=False, peer=False)
    pages = torch.randn(4, 5, 2, 8)
    ids = torch.tensor([1, 3], dtype=torch.int32)
    packed, key_pages = ops.pack_int8(torch.randn(48, 48)), ops.empty_key_pages(4, 5, 2, 8)
    value_pages = ops.empty_value_pages(4, 5, 2, 8)
    context = Context([[16, 3, 0], [0, 0, 0]]).arguments()
    finite = (*(tensor.nan_to_num() for tensor in context[:3]), *context[3:])
    for case in (write, plain):
        for name in ("k_pages", "v_pages", "unroped_pages", "peer_k_pages", "peer_v_pages"):
            if case.arguments[name] is not None:
                case.arguments[name].zero_()
    return {
        "layer_norm_modulate": (
            names.layer_norm_modulate.default,
            (x.transpose(0, 1), modulation.new_ones(6, 1, 48), modulation.new_ones(6, 1, 48), 1e-6),
        ),
        "gate_residual": (names.gate_residual.default, (x, y, modulation)),
        "rms_norm": (names.rms_norm.default, (x, torch.ones(48), 1e-6)),
        "qkv_page_write": (names.qkv_page_write.default, tuple(write.arguments.values())),
        "qkv_page_write to its own pages alone": (
            names.qkv_page_write.default,
            tuple(plain.arguments.values()),
        ),
        "rope_shift": (names.rope_shift.default, (pages, ids, pages.clone(), ids, rope_table(2, 5, 4))),
        "linear": (names.linear.default, (x, torch.randn(48, 48).T, None, True, y, modulation)),
        "gelu": (names.gelu.default, (x.transpose(0, 1),)),
        "renoise_step": (
            names.renoise_step.default,
            (*torch.randn(3, 2, 3, 5, 4, 6).transpose(3, 4).unbind(0), *torch.rand(2, 2, 4).unbind(0)),
        ),
        "quantize_tokens": (names.quantize_tokens.default, (x.transpose(0, 1), True)),
        "layer_norm_modulate_quantize": (
            names.layer_norm_modulate_quantize.default,
            (x, modulation, modulation, 1e-6),
        ),
        "int8_linear": (
            names.int8_linear.default,
            (*ops.quantize_tokens(x), *packed, None, y, modulation, torch.float32),
        ),
        "quantize_key_pages": (names.quantize_key_pages.default, (pages, ids, ids + 2, *key_pages)),
        "paged_attention_int8": (
            names.paged_attention_int8.default,
            (pages[:2], *key_pages, pages, ids[:, None], ids[:, None], 0.2),
        ),
        "paged_attention_int8 with log-sum-exp": (
            names.paged_attention_int8.lse,
            (pages[:2], *key_pages, pages, ids[:, None], ids[:, None], 0.2),
        ),
        "quantize_value_pages": (names.quantize_value_pages.default, (pages, ids, ids + 2, *value_pages)),
        "paged_attention_int8 with float8 values": (
            names.paged_attention_int8.default,
            (pages[:2], *key_pages, value_pages.data, ids[:, None], ids[:, None], 0.2, value_pages.scale),
        ),
        "block_queries": (names.block_queries.default, tuple(clean(query_arguments()).values())),
        "block_output": (names.block_output.default, tuple(output_arguments().values())),
        "paged_attention": (names.paged_attention.default, (*finite, 0.2)),
        "paged_attention with log-sum-exp": (names.paged_attention.lse, (*finite, 0.2)),
    }


@pytest.mark.parametrize("name", samples())
def test_opcheck(backend: str, name: str) -> None:
    op, arguments = samples()[name]
    torch.use_deterministic_algorithms(False)  # opcheck compares runs, and unwritten pages are poison
    # Autograd is by the functions of `wavecore.ops`, not by the operations.
    tests = ["test_schema", "test_faketensor", "test_aot_dispatch_dynamic"]
    if any(isinstance(a, Tensor) and a.dtype == torch.float8_e4m3fn for a in arguments):
        tests.remove("test_schema")  # it compares by products, which PyTorch does not have in float8
    torch.library.opcheck(op, arguments, test_utils=tests)


def test_fake_results_have_the_strides_of_real_ones(backend: str) -> None:
    for name, (op, arguments) in samples().items():
        real = op(*arguments)
        with torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True) as mode:
            fake = op(*(mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments))
        pairs = zip(real, fake, strict=True) if isinstance(real, tuple) else [(real, fake)]
        for actual, promised in pairs:
            if actual is not None:
                assert (actual.shape, actual.stride(), actual.dtype) == (
                    promised.shape,
                    promised.stride(),
                    promised.dtype,
                ), name


class Layer(torch.nn.Module):
    """Every operation once, with reads after writes to the same pages."""

    def __init__(self, write: dict[str, Tensor]) -> None:
        super().__init__()
        self.write = write
        self.table = write["page_ids"].clone()
        self.lengths = torch.full_like(self.table, 12)
        self.shifted = rope_table(2, 12, 12)

    def forward(self, x: Tensor, modulation: Tensor) -> Tensor:
        shift, scale, gate = modulation.unbind(2)
        n = ops.layer_norm_modulate(x, shift, scale, 1e-6)
        k = ops.rms_norm(n, self.write["k_weight"], 1e-6)
        q = ops.qkv_page_write(**{**self.write, "q": n, "k": k})
        pages = self.write["k_pages"]
        ops.rope_shift(self.write["unroped_pages"], self.table[0], pages, self.table[0], self.shifted)
        out, lse = ops.paged_attention(
            q, pages, self.write["v_pages"], self.table, self.lengths, return_lse=True
        )
        return ops.gate_residual(x, out.flatten(-2), gate) + lse.mean()


def run(compiled: bool) -> tuple[Tensor, Tensor]:
    """Result and key pages of a layer on inputs that are the same at every call."""
    torch.manual_seed(1)
    write = PageWrite(tokens=24, page_tokens=12).arguments
    for name in ("k_pages", "v_pages", "unroped_pages"):
        write[name].zero_()
    write["unroped_ids"] = write["page_ids"]
    layer = Layer(write)
    forward = torch.compile(layer, fullgraph=True, backend="eager") if compiled else layer
    with torch.no_grad():
        return forward(torch.randn(3, 24, 96), torch.randn(3, 2, 3, 96)), write["k_pages"]


def test_compiles_to_one_graph(backend: str) -> None:
    torch._dynamo.reset()
    for actual, expected in zip(run(compiled=True), run(compiled=False), strict=True):
        assert torch.equal(actual, expected)


def test_exports(backend: str) -> None:
    class Norms(torch.nn.Module):
        def forward(self, x: Tensor, shift: Tensor, scale: Tensor, weight: Tensor) -> Tensor:
            return ops.rms_norm(ops.layer_norm_modulate(x, shift, scale, 1e-6), weight, 1e-6)

    arguments = (torch.randn(2, 6, 16), torch.randn(2, 3, 16), torch.randn(2, 3, 16), torch.randn(16))
    with torch.no_grad():
        program = torch.export.export(Norms(), arguments)
        assert error(program.module()(*arguments), Norms()(*arguments)) == 0
    targets = {str(node.target) for node in program.graph.nodes}
    assert {"wavecore.layer_norm_modulate.default", "wavecore.rms_norm.default"} <= targets
