"""What a pass costs: the model of StreamDiffusionV2, learned from the passes of the stream itself.

L(T, B) = (a B T + P) / (eta BW): activations grow with the frames of a pass, the parameters are read once.
With what does not change put together, L = rate * (B T) + base, and a change of bandwidth scales both.
"""

from __future__ import annotations

import math

from wavecore.errors import UsageError

_FORGET = 0.9  # weight that an observation keeps with each newer one: about ten count
_JUMP = 0.15  # a relative error beyond this, and beyond the usual noise, is a change of the machine
_NOISE_MEMORY = 0.9


class CostModel:
    """Time of a pass by the latent frames in it, kept up to date; needs no profiling run.

    Least squares over two unknowns with exponential forgetting. A sudden change scales the whole model at
    once, since bandwidth divides both of its terms.

    Attributes
    ----------
    observations : int
        Passes seen.
    noise : float
        Mean relative error of the latest predictions.
    """

    def __init__(self) -> None:
        self.observations = 0
        self.noise = 0.0
        self._rate = 0.0
        self._base = 0.0
        # Sums over observations, by weight: 1, x, x^2, y, x y.
        self._sums = [0.0] * 5
        self._latest = 0.0
        self._known = False  # both unknowns, from passes of different size

    def predict(self, frames: float) -> float:
        """Seconds of a pass over B T = `frames` latent frames.

        Until passes of different size were seen, the time is taken to grow in proportion, which a real
        machine stays below; so a plan made on it holds.

        Raises
        ------
        UsageError
            Nothing was observed yet, or `frames` is not above 0.
        """
        if not self.observations:
            raise UsageError("predict: expected at least one observation, got none")
        if not frames > 0:
            raise UsageError(f"frames: expected a number above 0, got {frames}")
        return self._base + self._rate * frames

    def observe(self, frames: float, seconds: float) -> None:
        """Take note of a pass."""
        if not frames > 0 or not 0 < seconds < math.inf:
            raise UsageError(f"observe: expected frames and seconds above 0, got {frames} and {seconds}")
        if self.observations:
            expected = self.predict(frames)
            error = abs(seconds / expected - 1)
            # Before two sizes were seen, another size says more about the model than about the machine.
            known = self._known or frames == self._latest
            if known and error > max(_JUMP, 4 * self.noise):
                self._scale(seconds / expected)
            elif known:
                self.noise = _NOISE_MEMORY * self.noise + (1 - _NOISE_MEMORY) * error
        added = (1.0, frames, frames * frames, seconds, frames * seconds)
        self._sums = [_FORGET * old + new for old, new in zip(self._sums, added, strict=True)]
        self.observations += 1
        self._latest = frames
        self._solve()

    def _scale(self, factor: float) -> None:
        """Take earlier passes as if they had run on the machine as it is now."""
        self._sums[3] *= factor
        self._sums[4] *= factor

    def _solve(self) -> None:
        weight, x, xx, y, xy = self._sums
        spread = weight * xx - x * x
        self._known = spread > 1e-6 * weight * xx
        if self._known:
            rate = (weight * xy - x * y) / spread
            base = (y - rate * x) / weight
            if rate >= 0 and base >= 0:
                self._rate, self._base = rate, base
                return
            if rate < 0:
                self._rate, self._base = 0.0, y / weight
                return
        self._rate, self._base = xy / xx, 0.0
