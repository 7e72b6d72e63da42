"""The Triton kernels at the shapes of Wan 1.3B, 480 x 832: constants, types, bytes and operations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import triton

from wavecore.triton_kernels import (
    int8_linear,
    norm,
    page_write,
    paged_attention,
    paged_attention_tma,
    pointwise,
    quantize,
)

TOKENS, DIM, HEADS, HEAD_DIM, FFN = 4680, 1536, 12, 128, 8960  # a chunk of three latent frames
CONTEXT = 8 * TOKENS  # keys of a context of eight chunks
ALIGNED = re.compile(r".*(_slot|_token|_head|_stride|_row|_frame|_page|dim|inputs|outputs)$")
ROW = TOKENS * DIM * 2  # bytes of a hidden state in bfloat16


@dataclass(frozen=True)
class Case:
    """A kernel as it is launched.

    `constants` and `launch` (warps, stages) depend on the target. `promises` are instructions that have to be
    in the machine code, `bytes` and `operations` what the shape moves and computes.
    """

    name: str
    kernel: Any
    types: dict[str, str]
    constants: Callable[[int], dict[str, Any]]
    launch: Callable[[int], tuple[int, int]]
    bytes: int
    operations: dict[str, float] = field(default_factory=dict)
    promises: dict[int, tuple[str, ...]] = field(default_factory=dict)
    targets: tuple[int, ...] = (80, 90, 100)

    @staticmethod
    def is_aligned(name: str) -> bool:
        """Whether an integer argument of this name is a multiple of 16 at Wan's shapes."""
        return ALIGNED.match(name) is not None


def _types(**groups: str) -> dict[str, str]:
    """Types from groups of names: bf16="x y" makes both pointers to bfloat16, fp32_value="eps" a number."""
    made = {}
    for kind, names in groups.items():
        for name in names.split():
            made[name] = kind.removesuffix("_value") if kind.endswith("_value") else f"*{kind}"
    return made


def _rows(
    name: str, kernel: Any, types: dict[str, str], moved: int, dim: int = DIM, **constants: Any
) -> Case:
    """A kernel that holds a row in registers."""
    block = triton.next_power_of_2(dim)
    return Case(
        name,
        kernel,
        types,
        lambda target: {**constants, "BLOCK": block},
        lambda target: (norm.warps(block), 2),
        moved,
    )


def _attention(int8: bool, float8: bool = False) -> Case:
    def shape(target: int) -> tuple[int, int, int, int]:
        m, n, d, warps = paged_attention.tile_shape(TOKENS, 1560, HEAD_DIM, torch.bfloat16, target == 90)
        return m, n, d, warps

    def constants(target: int) -> dict[str, Any]:
        m, n, d, _ = shape(target)
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_D": d}
        return {"INT8": int8, "FP8": float8, "LSE": True, "PRECISION": "tf32", **blocks}

    matrix = {80: ("HMMA",), 90: ("HGMMA",), 100: ("UTCHMMA",)}
    integer = {80: ("IMMA",), 90: ("IGMMA",), 100: ()}
    quarter = {90: ("QGMMA",), 100: ("UTCQMMA",)}
    targets = (90, 100) if float8 else (80, 90, 100)
    return Case(
        _attention_name(int8, float8, "pointers"),
        paged_attention.paged_attention_kernel,
        _attention_types(int8, float8, "k_pages", "v_pages"),
        constants,
        lambda target: (shape(target)[3], 2),
        _attention_bytes(int8, float8),
        _attention_operations(int8, float8),
        {t: ((quarter[t] if float8 else matrix[t]) + (integer[t] if int8 else ())) for t in targets},
        targets,
    )


def _attention_name(int8: bool, float8: bool, how: str) -> str:
    return f"paged_attention{'_int8' if int8 else ''} ({'float8 values, ' if float8 else ''}{how})"


def _attention_types(int8: bool, float8: bool, keys: str, values: str) -> dict[str, str]:
    left = "i8" if int8 else "bf16"
    return {
        **_types(bf16="out", i32="page_table page_lengths order", fp32_value="scale"),
        **_types(fp32="lse q_scale k_scale offsets v_scale"),
        "q": f"*{left}",
        keys: f"*{left}",
        values: "*fp8e4nv" if float8 else "*bf16",
    }


def _attention_bytes(int8: bool, float8: bool) -> int:
    keys = CONTEXT * DIM * (1 if int8 else 2) + CONTEXT * HEADS * 4 * int8
    return 2 * ROW + keys + CONTEXT * DIM * (1 if float8 else 2)


def _attention_operations(int8: bool, float8: bool) -> dict[str, float]:
    each = 2.0 * TOKENS * CONTEXT * DIM
    return {"int8": each, "float8" if float8 else "bf16": each} if int8 else {"bf16": 2 * each}


def _attention_tma(int8: bool, float8: bool = False) -> Case:
    m = paged_attention_tma.BLOCK_M
    n, stages = paged_attention_tma.pipeline(int8, float8)
    types = _attention_types(int8, float8, "k_rows", "v_rows")
    types["k_rows"] = f"tensordesc<{'i8' if int8 else 'bf16'}[{n}, {HEAD_DIM}]>"
    types["v_rows"] = f"tensordesc<{'fp8e4nv' if float8 else 'bf16'}[{n}, {HEAD_DIM}]>"
    return Case(
        _attention_name(int8, float8, "descriptors"),
        paged_attention_tma.paged_attention_tma_kernel,
        types,
        lambda target: {
            "INT8": int8,
            "FP8": float8,
            "LSE": True,
            "BLOCK_M": m,
            "BLOCK_N": n,
            "HEAD_DIM": HEAD_DIM,
        },
        lambda target: (paged_attention_tma.WARPS, stages),
        _attention_bytes(int8, float8),
        _attention_operations(int8, float8),
        {90: ("UTMALDG", "QGMMA" if float8 else "HGMMA", *(("IGMMA",) if int8 else ()))},
        targets=(90,),
    )


def _linear(descriptors: bool) -> Case:
    def constants(target: int) -> dict[str, Any]:
        m, n, k, _, _ = int8_linear.tile_shape(TOKENS, FFN, target == 90)
        blocks = {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, "GROUP": 8}
        return {"BIAS": True, "RESIDUAL": True, "GATE": True, "WHOLE": True, "TMA": descriptors, **blocks}

    types = _types(i8="tokens weight", fp32="token_scale channel_scale", bf16="bias residual gate out")
    if descriptors:
        m, n, k, _, _ = int8_linear.LARGE
        types |= {"tokens": f"tensordesc<i8[{m}, {k}]>", "weight": f"tensordesc<i8[{n}, {k}]>"}
    promises: dict[int, tuple[str, ...]] = {80: ("IMMA",), 90: ("IGMMA",)}
    return Case(
        f"int8_linear ({'descriptors' if descriptors else 'pointers'})",
        int8_linear.int8_linear_kernel,
        types,
        constants,
        lambda target: int8_linear.tile_shape(TOKENS, FFN, target == 90)[3:],
        TOKENS * DIM + FFN * DIM + 2 * TOKENS * FFN * 2,
        {"int8": 2.0 * TOKENS * DIM * FFN},
        {90: ("UTMALDG", "IGMMA")} if descriptors else promises,
        (90,) if descriptors else (80, 90, 100),
    )


MODULATED = _types(bf16="x shift scale out", fp32_value="eps")
QUANTISED = {**MODULATED, **_types(i8="data", fp32="token_scale")}
WRITE = _types(
    bf16="q k v q_weight k_weight k_pages v_pages unroped_pages peer_k_pages peer_v_pages q_out",
    i32="page_ids unroped_ids peer_ids",
    fp32="rope",
    fp32_value="eps",
)
SHIFT = _types(bf16="source target", i32="source_ids target_ids", fp32="rope")
TOKEN = _types(bf16="x", i8="data", fp32="scale")
KEYS = _types(bf16="k_pages", i32="page_ids page_lengths", i8="data", fp32="scale mean")
VALUES = _types(bf16="v_pages", i32="page_ids page_lengths", fp8e4nv="data", fp32="scale")
STEP = _types(bf16="x velocity noise x0 noised", fp32="sigma next_sigma")
LATENTS = 16 * 3 * 60 * 104 * 2
CASES = (
    _rows("layer_norm_modulate", norm.layer_norm_modulate_kernel, MODULATED, 2 * ROW),
    _rows(
        "layer_norm_modulate (14B)", norm.layer_norm_modulate_kernel, MODULATED, 2 * TOKENS * 5120 * 2, 5120
    ),
    _rows("gate_residual", norm.gate_residual_kernel, _types(bf16="x y gate out"), 3 * ROW),
    _rows("rms_norm", norm.rms_norm_kernel, _types(bf16="x weight out", fp32_value="eps"), 2 * ROW),
    _rows("qkv_page_write", page_write.qkv_page_write_kernel, WRITE, 7 * ROW, UNROPED=True, PEER=False),
    _rows(
        "qkv_page_write (14B, peer)",
        page_write.qkv_page_write_kernel,
        WRITE,
        9 * TOKENS * 5120 * 2,
        5120,
        UNROPED=True,
        PEER=True,
    ),
    _rows("rope_shift", page_write.rope_shift_kernel, SHIFT, 2 * ROW),
    Case(
        "gelu",
        pointwise.gelu_kernel,
        _types(bf16="x out"),
        lambda target: {"BLOCK": pointwise.BLOCK},
        lambda target: (4, 2),
        2 * TOKENS * FFN * 2,
    ),
    Case(
        "renoise_step",
        pointwise.renoise_step_kernel,
        STEP,
        lambda target: {"BLOCK": pointwise.BLOCK},
        lambda target: (4, 2),
        5 * LATENTS,
    ),
    _rows("quantize_tokens", quantize.quantize_tokens_kernel, TOKEN, ROW + ROW // 2, GELU=False),
    _rows("quantize_tokens (GELU)", quantize.quantize_tokens_kernel, TOKEN, 3 * TOKENS * FFN, FFN, GELU=True),
    _rows(
        "layer_norm_modulate_quantize",
        quantize.layer_norm_modulate_quantize_kernel,
        QUANTISED,
        ROW + ROW // 2,
    ),
    Case(
        "quantize_key_pages",
        quantize.quantize_key_pages_kernel,
        KEYS,
        lambda target: {"BLOCK_N": 64, "BLOCK_D": HEAD_DIM},
        lambda target: (4, 2),
        2 * ROW + ROW // 2,
    ),
    Case(
        "quantize_value_pages",
        quantize.quantize_value_pages_kernel,
        VALUES,
        lambda target: {"BLOCK_N": 64, "BLOCK_D": HEAD_DIM},
        lambda target: (4, 2),
        2 * ROW + ROW // 2,
        targets=(90, 100),
    ),
    _linear(descriptors=False),
    _linear(descriptors=True),
    _attention(int8=False),
    _attention(int8=True),
    _attention(int8=True, float8=True),
    _attention_tma(int8=False),
    _attention_tma(int8=True),
    _attention_tma(int8=True, float8=True),
)
