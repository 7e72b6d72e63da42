"""SLO-aware batching: how many chunks of how many frames the next pass takes, so that no frame is late.

The scheduler that StreamDiffusionV2 describes. Larger passes are cheaper a frame, since parameters are read
once a pass; what bounds them is what has arrived and when it is due. Pure: time and cost come from outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from wavecore.control.clock import SECOND
from wavecore.control.streaming.cost import CostModel
from wavecore.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class BatchingSettings:
    """What the controller may choose from.

    Attributes
    ----------
    lengths : tuple of int
        Latent frames that a chunk may have, T, rising.
    max_batch : int
        Chunks, each of another stream, that one pass may take, B.
    passes : int
        Denoising steps that a chunk goes through before it is complete. In a stream batch every pass carries
        that many noise levels.
    headroom : float
        Share by which passes are taken to be longer than predicted, besides their measured noise.
    patience : int
        Decisions in a row for which a shorter chunk must do before one is taken.
    """

    lengths: tuple[int, ...] = (1, 2, 3)
    max_batch: int = 8
    passes: int = 1
    headroom: float = 0.0
    patience: int = 5

    def __post_init__(self) -> None:
        if not self.lengths or list(self.lengths) != sorted(set(self.lengths)) or self.lengths[0] < 1:
            raise UsageError(f"lengths: expected rising numbers of at least 1, got {self.lengths}")
        for name, least in (("max_batch", 1), ("passes", 1), ("headroom", 0), ("patience", 1)):
            if getattr(self, name) < least:
                raise UsageError(f"{name}: expected at least {least}, got {getattr(self, name)}")


@dataclass(frozen=True)
class Decision:
    """What the next pass takes.

    Attributes
    ----------
    length : int
        Latent frames a chunk, T.
    streams : tuple of int
        The streams whose next chunk it takes, earliest deadline first; B is their number.
    seconds : float
        Predicted time of the pass; 0 while nothing is known.
    in_time : bool
        False when no setting meets every deadline, and this one loses least.
    """

    length: int
    streams: tuple[int, ...]
    seconds: float
    in_time: bool = True

    @property
    def batch(self) -> int:
        """B."""
        return len(self.streams)


class BatchingController:
    """Chooses chunk length T and batch B for each pass of one device.

    Parameters
    ----------
    settings : BatchingSettings

    Attributes
    ----------
    cost : CostModel
        Learned from `observe`.
    length : int
        Present chunk length.
    """

    def __init__(self, settings: BatchingSettings | None = None) -> None:
        self.settings = BatchingSettings() if settings is None else settings
        self.cost = CostModel()
        self.length = self.settings.lengths[0]
        self._shorter_would_do = 0

    # -- what a pass takes ---------------------------------------------------------------

    def seconds(self, length: int, batch: int) -> float:
        """Predicted time of a steady pass, headroom included; 0 while nothing is known."""
        if not self.cost.observations:
            return 0.0
        frames = length * batch * self.settings.passes
        return self.cost.predict(frames) * (1 + self.settings.headroom + 2 * self.cost.noise)

    def observe(self, length: int, batch: int, seconds: float) -> None:
        """Take note of a pass that took `batch` chunks of `length` through all noise levels."""
        self.cost.observe(length * batch * self.settings.passes, seconds)

    # -- deciding ------------------------------------------------------------------------

    def hopeless(self, now: int, deadlines: Sequence[int]) -> int:
        """Count the oldest latent frames of a stream that not even the smallest pass gets done in time.

        Parameters
        ----------
        now : int
            Nanoseconds.
        deadlines : sequence of int
            When each waiting latent frame of the stream is due, rising.
        """
        soonest = now + self._delay(self.settings.lengths[0], 1)
        return sum(1 for deadline in deadlines if deadline < soonest)

    def decide(self, now: int, waiting: Sequence[Sequence[int]], rate: float) -> Decision | None:
        """Choose the next pass: the largest batch that leaves every waiting frame in time.

        Parameters
        ----------
        now : int
            Nanoseconds.
        waiting : sequence [streams] of sequence of int
            When each waiting latent frame of each stream is due, rising.
        rate : float
            Latent frames a second that arrive, all streams together.

        Returns
        -------
        Decision or None
            None while no stream has a chunk.
        """
        self._choose_length(rate, max(1, len(waiting)))
        fitting = [length for length in self.settings.lengths if length <= self.length]
        for length in reversed(fitting):  # what has arrived may not fill the length that the rate asks for
            streams = [index for index, deadlines in enumerate(waiting) if len(deadlines) >= length]
            if streams:
                break
        else:
            return None
        streams.sort(key=lambda index: waiting[index][0])
        most = min(len(streams), self.settings.max_batch)
        if not self.cost.observations:
            return Decision(self.settings.lengths[0], (streams[0],), 0.0)
        for batch in range(most, 0, -1):
            taken = streams[:batch]
            if self._in_time(now, waiting, length, taken):
                return Decision(length, tuple(taken), self.seconds(length, batch))
        return Decision(length, tuple(streams[:most]), self.seconds(length, most), in_time=False)

    def _in_time(self, now: int, waiting: Sequence[Sequence[int]], length: int, taken: Sequence[int]) -> bool:
        """Whether the chunks taken are done in time, and a chunk that is left can still be."""
        done = now + self._delay(length, len(taken))
        if any(waiting[index][0] < done for index in taken):
            return False
        following = now + round(self.seconds(length, len(taken)) * SECOND) + self._delay(length, 1)
        left = [row[length if index in taken else 0 :] for index, row in enumerate(waiting)]
        return all(row[0] >= following for row in left if len(row) >= length)

    def in_time(self, now: int, length: int, deadlines: Sequence[int]) -> bool:
        """Whether a chunk of `length` that begins now, by itself, is complete when its first frame is due."""
        return now + self._delay(length, 1) <= deadlines[0]

    def _delay(self, length: int, batch: int) -> int:
        """Nanoseconds from the start of a chunk's first pass to the end of its last."""
        return round(self.settings.passes * self.seconds(length, batch) * SECOND)

    # -- chunk length --------------------------------------------------------------------

    def sustains(self, length: int, streams: int, rate: float, margin: float = 1.0) -> bool:
        """Whether passes of `length` keep up with `rate` latent frames a second over `streams` streams."""
        batch = min(streams, self.settings.max_batch)
        return self.seconds(length, batch) * rate * margin <= length * batch

    def _choose_length(self, rate: float, streams: int) -> None:
        """The shortest chunk that keeps up; longer at once, shorter only when it has done for a while."""
        lengths = self.settings.lengths
        keeping_up = [length for length in lengths if self.sustains(length, streams, rate)]
        wanted = keeping_up[0] if keeping_up else lengths[-1]
        if wanted > self.length:
            self.length, self._shorter_would_do = wanted, 0
            return
        shorter = [
            length
            for length in lengths
            if length < self.length and self.sustains(length, streams, rate, margin=1.1)
        ]
        self._shorter_would_do = self._shorter_would_do + 1 if shorter else 0
        if self._shorter_would_do >= self.settings.patience:
            self.length, self._shorter_would_do = shorter[0], 0

    # -- admission -----------------------------------------------------------------------

    def admits(self, streams: int, rate: float, slo: float) -> bool:
        """Whether the device can serve `streams` streams of `rate` latent frames a second each.

        Parameters
        ----------
        streams : int
            The one that asks included.
        rate : float
            Latent frames a second of one stream.
        slo : float
            Seconds from the arrival of a frame to its output.

        Returns
        -------
        bool
            True when some chunk length keeps up and, with the time to collect a chunk, holds the objective.
            The first stream is always admitted, since nothing is known before it.
        """
        if streams <= 1:
            return True
        if not self.cost.observations or streams > self.settings.max_batch:
            return False
        return any(
            self.sustains(length, streams, streams * rate)
            and (length - 1) / rate + (1 + self.settings.passes) * self.seconds(length, streams) <= slo
            for length in self.settings.lengths
        )
