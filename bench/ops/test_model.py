"""Whole models and calls beside PyTorch: a Wan 1.3B block, the forward of sprites, the overhead of a call."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from measure import measure_pair, read_result, write_result
from torch import Tensor

from wavecore import ops
from wavecore.cache.keys import quantize_keys
from wavecore.cache.view import PageView
from wavecore.models.dit import CausalWanDiT, DiTConfig, SlotState, TextContext
from wavecore.models.int8 import quantize_dit
from wavecore.models.sprites import load_sprites

RESULT = "ops_model"
TOKENS, FRAMES_OF_CONTEXT = 1560, 4


@pytest.fixture(scope="module")
def results() -> Iterator[dict[str, Any]]:
    collected: dict[str, Any] = {}
    yield collected
    if collected:
        write_result(RESULT, {**read_result(RESULT), **collected})


def _pages(count: int, page_tokens: int, config: DiTConfig, slots: int, dtype: torch.dtype) -> PageView:
    """Full pages for every layer; each slot writes its first ones and reads all of its own."""
    shape = (slots * count, page_tokens, config.heads, config.head_dim)
    k_pages, v_pages = ([torch.randn(shape, dtype=dtype) for _ in range(config.layers)] for _ in range(2))
    table = torch.arange(slots * count, dtype=torch.int32).view(slots, count)
    frames = 3 if slots > 1 else 1
    return PageView(
        k_pages, v_pages, table[:, :frames].contiguous(), table, torch.full_like(table, page_tokens)
    )


@pytest.mark.parametrize("threads", [1, 2])
def test_sprites_forward(threads: int, results: dict[str, Any]) -> None:
    """Five slots of three latent frames with a context of twelve, on the kernels and on PyTorch."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    dit = load_sprites().dit.eval().requires_grad_(False)
    config, slots, frames, size = dit.config, 5, 3, 16
    torch.manual_seed(0)
    latents = torch.randn(slots, config.in_channels, frames, size, size)
    timesteps = torch.rand(slots, frames).double() * 1000
    positions = torch.arange(frames).repeat(slots, 1)
    with torch.inference_mode():
        text = TextContext.stack([dit.encode_text(torch.randn(1, 16, config.text_dim))] * slots)
        pages = _pages(12, dit.tokens_per_frame(size, size), config, slots, torch.float32)

        def forward(backend: str) -> Tensor:
            ops.set_backend(backend)
            return dit.forward_paged(latents, timesteps, positions, text, pages)

        try:
            assert (forward("auto") - forward("torch")).abs().max() <= 1e-3
            pair = measure_pair(lambda: forward("auto"), lambda: forward("torch"), 6.0)
        finally:
            ops.set_backend("auto")
            torch.set_num_threads(before)
    results[f"sprites_forward_{threads}_threads"] = _row(pair, "eager PyTorch", bar=2.0)


def _row(pair: Any, beside: str, bar: float) -> dict[str, Any]:
    row = {
        "beside": beside,
        "microseconds": [round(value) for value in pair.ours],
        "beside_microseconds": [round(value) for value in pair.other],
        "ratio_quiet": round(pair.ratio, 2),
        "ratio_busy": round(pair.busy_ratio, 2),
        "bar": bar,
    }
    print(f"\n{row}")
    return row


def _block(dtype: torch.dtype) -> tuple[CausalWanDiT, SlotState, PageView]:
    torch.manual_seed(0)
    dit = CausalWanDiT(DiTConfig(layers=1)).eval().requires_grad_(False)
    with torch.no_grad():
        for parameter in dit.parameters():
            scale = 0.02 if parameter.dim() == 1 else parameter[0].numel() ** -0.5
            parameter.copy_(torch.randn(parameter.shape) * scale)
    dit.to(dtype)
    config = dit.config
    text = TextContext(
        *((torch.randn(1, 512, config.heads, config.head_dim, dtype=dtype),) for _ in range(2))  # type: ignore[arg-type]
    )
    angles = torch.randn(1, TOKENS, config.head_dim // 2)
    state = SlotState(
        hidden=torch.randn(1, TOKENS, config.dim, dtype=dtype),
        modulation=torch.randn(1, 1, 6, config.dim, dtype=dtype) * 0.1,
        time=torch.randn(1, 1, config.dim, dtype=dtype),
        rope=torch.stack((angles.cos(), angles.sin()), -1),
        text=text,
        latents=torch.empty(1, 16, 1, 60, 104),
        timesteps=torch.full((1, 1), 500.0),
    )
    return dit, state, _pages(FRAMES_OF_CONTEXT, TOKENS, config, 1, dtype)


def _run(dit: CausalWanDiT, state: SlotState, pages: PageView) -> Tensor:
    """One layer; the state is left as it was."""
    hidden = state.hidden
    dit.attend(state, 0, dit.project(state, 0, pages), pages)
    out, state.hidden = state.hidden, hidden
    return out


def _with_int8_keys(pages: PageView) -> PageView:
    """The same pages, whose keys are held in int8."""
    keys = pages.k_pages[0]
    memory = torch.zeros(len(keys), ops.key_page_bytes(*keys.shape[1:]), dtype=torch.uint8)
    quantize_keys(memory, keys, pages.read_table)
    return replace(pages, k_pages=[memory], key_staging=keys)


def _diffusers_block(state: SlotState, pages: PageView, dtype: torch.dtype) -> Callable[[], Tensor]:
    """diffusers' block on as many queries and keys.

    Its attention knows no context, so that the keys of the other frames go through its own fused attention on
    ready tensors beside it; gathering them is not counted against it.
    """
    from diffusers.models.transformers.transformer_wan import WanTransformerBlock

    block = WanTransformerBlock(1536, 8960, 12, "rms_norm_across_heads", True, 1e-6, None)
    block = block.to(dtype).eval().requires_grad_(False)
    text = torch.randn(1, 512, 1536, dtype=dtype)
    half = state.rope.repeat_interleave(2, 2)
    rotary = half[..., 0].unsqueeze(2), half[..., 1].unsqueeze(2)
    time_projection = state.modulation[:, 0].float()
    q = torch.randn(1, 12, TOKENS, 128, dtype=dtype)
    k, v = torch.randn(2, 1, 12, (FRAMES_OF_CONTEXT - 1) * TOKENS, 128, dtype=dtype)

    def run() -> Tensor:
        out = block(state.hidden, text, time_projection, rotary)
        torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return out

    return run


@pytest.mark.parametrize("int8", ["", "w8a8", "w8a8_int8_qk"], ids=["as it is", "W8A8", "W8A8, INT8-QK"])
def test_wan_block(int8: str, results: dict[str, Any]) -> None:
    """One layer of Wan 1.3B in bfloat16: a latent frame of queries, four of context."""
    with torch.inference_mode():
        dit, state, pages = _block(torch.bfloat16)
        plain = _run(dit, state, pages).float()
        if int8:
            quantize_dit(dit)
        if int8 == "w8a8_int8_qk":
            pages = _with_int8_keys(pages)
        error = ((_run(dit, state, pages).float() - plain).norm() / plain.norm()).item()
        assert error <= 0.03
        other = _diffusers_block(state, pages, torch.bfloat16)
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(3):
            for function, into in zip((lambda: _run(dit, state, pages), other), times, strict=True):
                began = time.thread_time()
                function()
                into.append(time.thread_time() - began)
    ours, theirs = (sorted(values) for values in times)
    row = {
        "beside": "diffusers' block in bfloat16",
        "seconds": round(ours[1], 3),
        "beside_seconds": round(theirs[1], 3),
        "ratio": round(theirs[1] / ours[1], 2),
        "bar": 2.5 if int8 else 1.4,
        "relative_error": error,
    }
    print(f"\n{row}")
    results["_".join(("wan_1_3b_block", int8)).rstrip("_")] = row


def test_call_overhead(results: dict[str, Any]) -> None:
    """Microseconds of a call on the smallest shapes, median of many."""
    x, m, w = torch.randn(1, 1, 8), torch.randn(1, 1, 8), torch.ones(8)
    rope, pages = torch.ones(1, 1, 2, 2), torch.zeros(2, 1, 2, 4)
    table, ones = torch.zeros(1, 1, dtype=torch.int32), torch.ones(1, 1, dtype=torch.int32)
    packed, tokens = ops.pack_int8(torch.randn(8, 8)), ops.quantize_tokens(x)
    q = x.view(1, 1, 2, 4)
    calls: dict[str, Callable[[], object]] = {
        "layer_norm_modulate": lambda: ops.layer_norm_modulate(x, m, m, 1e-6),
        "gate_residual": lambda: ops.gate_residual(x, x, m),
        "rms_norm": lambda: ops.rms_norm(x, w, 1e-6),
        "gelu": lambda: ops.gelu(x),
        "linear": lambda: ops.linear(x, torch_weight, w),
        "quantize_tokens": lambda: ops.quantize_tokens(x),
        "int8_linear": lambda: ops.int8_linear(tokens, packed, w),
        "qkv_page_write": lambda: ops.qkv_page_write(x, x, x, w, w, rope, pages, pages, table, 1e-6),
        "rope_shift": lambda: ops.rope_shift(pages, table[0], pages, table[0], rope),
        "paged_attention": lambda: ops.paged_attention(q, pages, pages, table, ones),
    }
    torch_weight = torch.randn(8, 8)
    found = {}
    with torch.inference_mode():
        for name, call in calls.items():
            call()
            times = []
            for _ in range(200):
                began = time.thread_time_ns()
                for _ in range(10):
                    call()
                times.append((time.thread_time_ns() - began) / 1e4)
            found[name] = round(sorted(times)[len(times) // 4], 1)
    print(f"\n{found}")
    results["call_overhead_microseconds"] = {"bar": 15, **found}
