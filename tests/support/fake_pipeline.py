"""A pipeline without a model, with the interface of `wavecore.pipeline`; frames show their version."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch


@dataclass
class FakeGroup:
    frames: np.ndarray
    index: int
    version: int
    pts: float
    latent: torch.Tensor


@dataclass
class FakeSession:
    """One group a latent: 1 frame, then 4, 4, ...; the grey level of a frame is 20 + 40 * version."""

    prompts: list[str]
    sizes: list[int]
    size: tuple[int, int]
    options: dict[str, Any]
    fail_at: int | None = None
    delay: float = 0.0
    closed: bool = False
    requested_at: list[int] = field(default_factory=list)
    given: int = 0

    def __iter__(self) -> Iterator[FakeGroup]:
        for index, count in enumerate(self.sizes):
            if index == self.fail_at:
                raise RuntimeError("the model failed")
            time.sleep(self.delay)
            version = len(self.prompts) - 1
            frames = np.full((count, self.size[1], self.size[0], 3), 20 + 40 * version, np.uint8)
            first = self.given
            self.given += count
            yield FakeGroup(frames, index, version, first / 16, torch.full((16, 4, 4), float(index)))

    def update(self, prompt: str) -> None:
        self.prompts.append(prompt)
        self.requested_at.append(self.given)

    def close(self) -> None:
        self.closed = True


@dataclass
class FakePipeline:
    size: tuple[int, int] = (32, 24)
    fail_at: int | None = None
    delay: float = 0.0
    sessions: list[FakeSession] = field(default_factory=list)

    def session(
        self, prompt: str, *, num_frames: int, size: tuple[int, int] | None, **options: Any
    ) -> FakeSession:
        sizes = [1] + [4] * ((num_frames - 1) // 4)
        if (num_frames - 1) % 4:
            sizes.append((num_frames - 1) % 4)
        return self._start(prompt, sizes, size or self.size, options)

    def restyle(
        self, frames: Iterator[np.ndarray], prompt: str, *, size: tuple[int, int], **options: Any
    ) -> FakeSession:
        shapes = [frame.shape for frame in frames]
        assert set(shapes) == {(size[1], size[0], 3)}
        return self._start(prompt, [1] * len(shapes), size, options)

    def _start(
        self, prompt: str, sizes: list[int], size: tuple[int, int], options: dict[str, Any]
    ) -> FakeSession:
        session = FakeSession([prompt], sizes, size, options, self.fail_at, self.delay)
        self.sessions.append(session)
        return session
