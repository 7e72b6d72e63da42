"""What Triton's interpreter does wrongly, mended for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch


def round_float8(monkeypatch: pytest.MonkeyPatch) -> None:
    """Round float32 to float8 as a GPU does.

    The interpreter loses the carry where a number is rounded up to the next power of two: it becomes half.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    convert = interpreter._convert_float

    def converted(values: Any, source: Any, target: Any, rounding: Any) -> Any:
        if source != tl.float32 or target != tl.float8e4nv:
            return convert(values, source, target, rounding)
        whole = torch.from_numpy(np.array(values, dtype=np.float32))
        return whole.clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()

    monkeypatch.setattr(interpreter, "_convert_float", converted)
