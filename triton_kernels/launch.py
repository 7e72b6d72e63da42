"""What the launches of all kernels share."""

from __future__ import annotations

import contextlib

import torch
from torch import Tensor

# Stated for every launch, since Triton's default is about to change.
OPTIONS = {"enable_fp_fusion": True}
# Arguments that change from round to round. Triton would compile a kernel anew, in the middle of a stream,
# when one of them is 1, or a multiple of 16 (for pointers, of 16 bytes), for the first time.
VARIES = ("entries", "items", "rows", "tokens_per_slot")
VARIES_IN_ALIGNMENT = (
    "page_table", "page_lengths", "page_ids", "unroped_ids", "peer_ids", "source_ids", "target_ids"
)  # fmt: skip


def on_device(tensor: Tensor) -> contextlib.AbstractContextManager[object]:
    """Make the device of `tensor` current: Triton launches on the current one, whatever the pointers."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else contextlib.nullcontext()


def dense_rows(tensor: Tensor) -> Tensor:
    """`tensor`, copied only if its last stride is not 1."""
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] <= 1 else tensor.contiguous()


def warps(columns: int) -> int:
    """Warps for a program that holds a row of `columns` numbers in registers."""
    return min(max(columns // 512, 1), 16)
