"""Motion-aware noise: how much noise a chunk of a live source begins with, from how much moves in it.

Fast motion takes less noise, so that the source holds the picture together; a still scene takes more, so that
the prompt shows (StreamDiffusionV2, section "motion-aware noise controller").
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from wavecore.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

NoiseMode = Literal["paper", "compatible"]


@dataclass(frozen=True, kw_only=True)
class NoiseSettings:
    """Constants of the controller; the defaults are those of StreamDiffusionV2.

    Attributes
    ----------
    mode : "paper" or "compatible"
        "paper": motion is measured on latents, and the model is told the noise that is there.
        "compatible": as the public code does: measured on pixels in [-1, 1], and the model is told
        `offset` less than the noise that is there.
    highest : float
        s_max, the share of noise where nothing moves; the stream begins with it. Within (0, 1].
    span : float
        s_max - s_min, by how much full motion lowers it. Within [0, highest).
    scale : float
        The difference of consecutive frames (RMS) that counts as full motion.
    window : int
        k, how many of the latest differences count; the largest decides.
    smoothing : float
        Weight of the new value in the moving average, within (0, 1].
    offset : int
        Of the timestep, in compatible mode only.
    """

    mode: NoiseMode = "paper"
    highest: float = 0.8
    span: float = 0.1
    scale: float = 0.2
    window: int = 4
    smoothing: float = 0.9
    offset: int = 100

    def __post_init__(self) -> None:
        if self.mode not in ("paper", "compatible"):
            raise UsageError(f"mode: expected paper or compatible, got {self.mode!r}")
        for name, holds, expected in (
            ("highest", 0 < self.highest <= 1, "a number within (0, 1]"),
            ("span", 0 <= self.span < self.highest, f"a number within [0, {self.highest:g})"),
            ("scale", 0 < self.scale < math.inf, "a number above 0"),
            ("window", self.window >= 1, "at least 1"),
            ("smoothing", 0 < self.smoothing <= 1, "a number within (0, 1]"),
            (
                "offset",
                self.mode == "paper" or 0 <= self.offset < 1000 * (self.highest - self.span),
                "a timestep below the lowest",
            ),
        ):
            if not holds:
                raise UsageError(f"{name}: expected {expected}, got {getattr(self, name)}")


class NoiseController:
    """Follows the motion of one stream.

    Parameters
    ----------
    settings : NoiseSettings

    Attributes
    ----------
    strength : float
        Share of noise of the latest chunk.
    """

    def __init__(self, settings: NoiseSettings) -> None:
        self.settings = settings
        self.strength = settings.highest
        self._recent: deque[float] = deque(maxlen=settings.window)

    def update(self, differences: Sequence[float]) -> float:
        """Share of noise of the next chunk.

        Parameters
        ----------
        differences : sequence of float
            RMS difference of each frame of the chunk to the one before it, the last frame of the previous
            chunk included. Empty where there is nothing to compare, as in a first chunk of one frame: the
            share of noise then stays.
        """
        if not differences:
            return self.strength
        for value in differences:
            if not math.isfinite(value) or value < 0:
                raise UsageError(f"differences: expected finite numbers of at least 0, got {value}")
        settings = self.settings
        if settings.mode == "compatible":  # measured in single precision there: 0.1 is a little more than 0.1
            differences = [float(np.float32(value)) for value in differences]
        self._recent.extend(differences)
        motion = min(max(self._recent) / settings.scale, 1.0)
        aim = settings.highest - settings.span * motion
        self.strength = settings.smoothing * aim + (1 - settings.smoothing) * self.strength
        return self.strength

    @property
    def timestep(self) -> float:
        """What the model is told about the latest chunk's noise, 0 to 1000."""
        if self.settings.mode == "paper":
            return 1000 * self.strength
        return float(math.floor(1000 * self.strength) - self.settings.offset)


def pixel_differences(frames: Sequence[NDArray[np.uint8]], before: NDArray[np.uint8] | None) -> list[float]:
    """RMS difference of each frame to the one before it, pixels in [-1, 1].

    Parameters
    ----------
    frames : sequence of uint8 [h, w, 3]
        Of one size.
    before : uint8 [h, w, 3] or None
        The frame before them; without one the first frame has no difference.
    """
    result = []
    for frame in frames:
        if before is not None:
            change = np.subtract(frame, before, dtype=np.float32) / np.float32(127.5)
            result.append(float(np.sqrt(np.mean(np.square(change), dtype=np.float64))))
        before = frame
    return result
