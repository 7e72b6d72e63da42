"""Each entry launches on the device of its tensors, on the stream that is current there."""

from __future__ import annotations

from collections.abc import Callable

import pytest

pytest.importorskip("triton")

import torch
from support.launches import Devices, forget_kernels, placed, pretend
from support.ops import Context, PageWrite, rope_table
from torch import Tensor

from wavecore.errors import UsageError
from wavecore.ops import triton_int8
from wavecore.triton_kernels import (
    int8_linear,
    norm,
    page_write,
    paged_attention,
    paged_attention_tma,
    pointwise,
    quantize,
)
from wavecore.triton_kernels.attention_step import Scales

MODULES = (int8_linear, norm, page_write, paged_attention, paged_attention_tma, pointwise, quantize)
HALF = torch.float16
SIDE, OTHER = 0x51DE, 0x07E5  # streams that are not the default ones of devices 1 and 0


def place(value: object) -> object:
    return placed(value) if isinstance(value, Tensor) else value


def rows(*shape: int, dtype: torch.dtype = HALF) -> Tensor:
    return placed(torch.zeros(shape, dtype=dtype))


def ids(*values: int) -> Tensor:
    return placed(torch.tensor(values, dtype=torch.int32))


def attention(quantised: bool, page_tokens: int = 64, lse: bool = False, float8: bool = False) -> None:
    context = Context(
        [[page_tokens, 3]], tokens=130, heads=2, head_dim=64, page_tokens=page_tokens, dtype=HALF
    )
    q, k_pages, v_pages, table, lengths = map(place, context.arguments())
    keys = None
    if quantised:
        pages = len(context.k_pages)
        k_pages = rows(*context.k_pages.shape, dtype=torch.int8)
        scale = rows(pages, page_tokens, 2, dtype=torch.float32)
        values = None
        if float8:
            v_pages = rows(*context.v_pages.shape, dtype=torch.float8_e4m3fn)
            values = rows(pages, 2, dtype=torch.float32)
        keys = Scales(scale, rows(pages, 2, 64, dtype=torch.float32), values)
    function = paged_attention.paged_attention_lse if lse else paged_attention.paged_attention
    function(q, k_pages, v_pages, table, lengths, 0.125, keys)


def write() -> None:
    page_write.qkv_page_write(**{name: place(value) for name, value in PageWrite().arguments.items()})


def linear(tokens: int, outputs: int) -> None:
    int8_linear.int8_linear(
        *(rows(2, tokens, 64, dtype=torch.int8), rows(2, tokens, dtype=torch.float32)),
        *(rows(outputs + 12, 64, dtype=torch.int8), rows(outputs, dtype=torch.float32)),
        *(rows(outputs), rows(2, tokens, outputs), rows(2, 3, outputs), HALF),
    )


ENTRIES: dict[str, Callable[[], object]] = {
    "layer_norm_modulate": lambda: norm.layer_norm_modulate(
        rows(2, 6, 8), rows(2, 3, 8), rows(2, 3, 8), 1e-6
    ),
    "gate_residual": lambda: norm.gate_residual(rows(2, 6, 8), rows(2, 6, 8), rows(2, 3, 8)),
    "rms_norm": lambda: norm.rms_norm(rows(6, 8), rows(8), 1e-6),
    "qkv_page_write": write,
    "rope_shift": lambda: page_write.rope_shift(
        rows(3, 4, 2, 8), ids(0, 1), rows(3, 4, 2, 8), ids(1, 2), place(rope_table(2, 4, 4))
    ),
    "gelu": lambda: pointwise.gelu(rows(6, 8)),
    "renoise_step": lambda: pointwise.renoise_step(
        *(rows(2, 3, 5, 4, 6) for _ in range(3)), *(rows(2, 5, dtype=torch.float32) for _ in range(2))
    ),
    "quantize_tokens": lambda: quantize.quantize_tokens(rows(6, 8), True),
    "layer_norm_modulate_quantize": lambda: quantize.layer_norm_modulate_quantize(
        rows(2, 6, 8), rows(2, 3, 8), rows(2, 3, 8), 1e-6
    ),
    "quantize_key_pages": lambda: quantize.quantize_key_pages(
        rows(3, 4, 2, 16),
        *(ids(0, 2), ids(4, 1)),
        *(rows(3, 4, 2, 16, dtype=torch.int8), rows(3, 4, 2, dtype=torch.float32)),
        rows(3, 2, 16, dtype=torch.float32),
    ),
    "quantize_value_pages": lambda: quantize.quantize_value_pages(
        *(rows(3, 4, 2, 16), ids(0, 2), ids(4, 1)),
        *(rows(3, 4, 2, 16, dtype=torch.float8_e4m3fn), rows(3, 2, dtype=torch.float32)),
    ),
    "int8_linear": lambda: linear(12, 20),
    "int8_linear by descriptors": lambda: linear(60, 132),
    "paged_attention": lambda: attention(False, page_tokens=16),
    "paged_attention with log-sum-exp": lambda: attention(False, page_tokens=16, lse=True),
    "paged_attention_int8": lambda: attention(True, page_tokens=16),
    "paged_attention by descriptors": lambda: attention(False),
    "paged_attention_int8 by descriptors": lambda: attention(True, lse=True),
    "float8 values": lambda: attention(True, page_tokens=16, float8=True),
    "float8 values by descriptors": lambda: attention(True, lse=True, float8=True),
}


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> Devices:
    """Two devices in name; the first is current, the tensors are on the second."""
    made = Devices(streams={0: OTHER, 1: SIDE})
    pretend(monkeypatch, made)
    for module in MODULES:
        forget_kernels(monkeypatch, module)
    return made


@pytest.mark.parametrize("name", ENTRIES)
def test_the_device_of_the_tensors_and_its_current_stream(devices: Devices, name: str) -> None:
    ENTRIES[name]()
    assert devices.launches
    assert {(launch.device, launch.stream) for launch in devices.launches} == {(1, SIDE)}
    assert {launch.grid[1:] for launch in devices.launches} == {(1, 1)}
    assert devices.current == 0  # as it was found
    devices.streams[1] = SIDE + 1  # at the next call another stream is current
    seen = len(devices.launches)
    ENTRIES[name]()
    assert {launch.stream for launch in devices.launches[seen:]} == {SIDE + 1}


def test_no_kernel_is_compiled_anew_while_a_context_grows(devices: Devices) -> None:
    """Numbers of slots and of pages change from round to round, and tables begin at any entry."""
    for slots, entries in ((1, 1), (2, 3), (5, 15), (5, 16), (5, 21)):
        tables = [placed(torch.ones(slots + 1, entries, dtype=torch.int32))[1:] for _ in range(2)]
        for page_tokens in (16, 64):
            pages = rows(7, page_tokens, 2, 64)
            paged_attention.paged_attention(rows(slots, 130, 2, 64), pages, pages, *tables, 0.125)
        flat = tables[0].flatten()
        angles = place(torch.zeros(len(flat), 4, 4, 2))
        page_write.rope_shift(rows(3, 4, 2, 8), flat, rows(3, 4, 2, 8), flat, angles)
        quantize.quantize_key_pages(
            *(rows(3, 4, 2, 16), flat, flat),
            *(rows(3, 4, 2, 16, dtype=torch.int8), rows(3, 4, 2, dtype=torch.float32)),
            rows(3, 2, 16, dtype=torch.float32),
        )
        scale = rows(entries, dtype=torch.float32)
        weight = rows(144, 64, dtype=torch.int8), rows(132, dtype=torch.float32)
        int8_linear.int8_linear(rows(entries, 64, dtype=torch.int8), scale, *weight, None, None, None, HALF)
    assert sorted(devices.compiled) == [
        "int8_linear_kernel",
        "paged_attention_kernel",
        "paged_attention_tma_kernel",
        "quantize_key_pages_kernel",
        "rope_shift_kernel",
    ]


def test_float8_values_on_an_older_device(devices: Devices) -> None:
    devices.capability = 80
    q, pages, table = rows(1, 4, 2, 16), rows(3, 4, 2, 16), placed(torch.zeros(1, 1, dtype=torch.int32))
    keys = rows(3, 4, 2, 16, dtype=torch.int8), *(rows(3, *n, dtype=torch.float32) for n in ((4, 2), (2, 16)))
    with pytest.raises(UsageError, match=r"^v_pages: expected torch.float16 on .* 8.0, got float8, which"):
        triton_int8.paged_attention_int8(
            *(q, *keys, pages.to(torch.float8_e4m3fn), table, table, 1.0),
            rows(3, 2, dtype=torch.float32),
        )
    assert devices.launches == []


def test_nothing_is_launched_for_no_tokens(devices: Devices) -> None:
    """A grid without programs is an error on a device."""
    none, frame, scale = rows(2, 0, 8), rows(2, 1, 8), rows(2, 0, dtype=torch.float32)
    norm.layer_norm_modulate(none, frame, frame, 1e-6)
    norm.gate_residual(none, none, frame)
    norm.rms_norm(none, rows(8), 1e-6)
    pointwise.gelu(none)
    pointwise.renoise_step(*(rows(2, 3, 0, 4, 6) for _ in range(3)), scale, scale)
    quantize.quantize_tokens(none, False)
    quantize.layer_norm_modulate_quantize(none, frame, frame, 1e-6)
    quantize.quantize_key_pages(
        rows(3, 4, 2, 16), ids(), ids(), rows(3, 4, 2, 16, dtype=torch.int8), rows(3, 4, 2), rows(3, 2, 16)
    )
    weight = (rows(16, 64, dtype=torch.int8), rows(5, dtype=torch.float32))
    int8_linear.int8_linear(rows(2, 0, 64, dtype=torch.int8), scale, *weight, None, None, None, HALF)
    page_write.rope_shift(rows(3, 4, 2, 8), ids(), rows(3, 4, 2, 8), ids(), rows(0, 4, 4, 2))
    page_write.qkv_page_write(
        *(none, none, none, rows(8), rows(8), rows(2, 0, 2, 2, dtype=torch.float32)),
        *(rows(3, 4, 2, 4), rows(3, 4, 2, 4), placed(torch.empty(2, 0, dtype=torch.int32)), 1e-6),
    )
    q, k_pages, v_pages, table, lengths = map(place, Context([[16]], tokens=0, dtype=HALF).arguments())
    paged_attention.paged_attention(q, k_pages, v_pages, table, lengths, 0.125)
    assert devices.launches == []


def test_every_kernel_has_an_entry_here(devices: Devices, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in ENTRIES.values():
        entry()
    kernels = {name for module in MODULES for name in forget_kernels(monkeypatch, module)}
    assert {launch.kernel for launch in devices.launches} == kernels
