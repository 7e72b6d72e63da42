"""A stream whose stages are processes of their own: wave parallelism behind the interface of a session."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from wavecore.models.bundle import StreamModel
from wavecore.models.dit import TextContext
from wavecore.placement.replicas import ReplicaOptions, ReplicaPlacement, Replicas
from wavecore.restyling import Restyling
from wavecore.rounds import NoiseLevel, Rules
from wavecore.session import Session
from wavecore.trace import Trace
from wavecore.transfer import upload

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from wavecore.placement.decode import DecodeOptions


class ReplicaSession(Session):
    """A session over `Replicas`, whose stages run ahead of what was taken as far as keeps them busy.

    Parameters
    ----------
    model, prompt, rules, levels, seed, size, fps, num_frames, source, trace, restyling, decoders
        As for `Session`.
    replicas : Replicas or ReplicaOptions
        Processes that other sessions share, or how to start those of this session alone.
    """

    def __init__(
        self,
        model: StreamModel,
        prompt: str,
        rules: Rules,
        levels: Sequence[NoiseLevel],
        seed: int,
        size: tuple[int, int],
        fps: float,
        num_frames: int | None = None,
        source: Iterator[NDArray[np.uint8]] | None = None,
        trace: Trace | None = None,
        restyling: Restyling | None = None,
        replicas: Replicas | ReplicaOptions | None = None,
        decoders: DecodeOptions | None = None,
    ) -> None:
        factor = model.vae.spatial_factor
        latent = model.dit.config.in_channels, size[1] // factor, size[0] // factor
        self._last_context: TextContext | None = None
        self._conditions = -1
        own = not isinstance(replicas, Replicas)
        if not isinstance(replicas, Replicas):
            replicas = Replicas(model.dit, rules, latent, replicas, trace)
        self._replicas = replicas
        try:
            super().__init__(
                model,
                prompt,
                rules,
                levels,
                seed,
                size,
                fps,
                num_frames,
                source=source,
                trace=trace,
                restyling=restyling,
                place=cast(Any, ReplicaPlacement(model.dit)),  # rounds run elsewhere altogether
                decoders=decoders,
            )
        except BaseException:
            if own:
                replicas.close()
            raise
        if own:
            self._belongings.add(replicas.close)
        try:
            self._stream = replicas.stream(rules, levels, seed, self._rounds.chunks)
        except BaseException:
            self._belongings.close()
            raise
        self._belongings.add(self._stream.close)

    def _advance(self) -> bool:
        """Let chunks enter as far as stages want them, and take the next one that is complete.

        Returns once frames have come from processes that decode, too.
        """
        if self._closed or self._frames_left == 0:
            return False
        stream = self._stream
        while stream.wants_chunk:
            self._enter()
        taken = stream.take(until=lambda: self._closed or self._decoding.ready)
        if taken is None:
            return not (stream.over or self._closed)
        chunk, latents = taken
        self.in_flight -= 1
        self._decode(chunk, upload(latents, self.model.device))
        self._of_chunk = {later: prompt for later, prompt in self._of_chunk.items() if later > chunk}
        return True

    def _enter(self) -> None:
        """Let the next chunk enter under the latest prompt, if there is one."""
        if self._source is not None and not self._prepare_source(self._source):
            self._rounds.finish()
            self._stream.end()
            return
        chunk = self._stream.entered
        self._admit(next(self._rounds))
        context = self._of_chunk[chunk].context
        if context is not self._last_context:
            # Conditions are numbered apart from prompt versions: a transition passes through several of them.
            self._last_context = context
            self._conditions += 1
        source, levels = self._handoff.entrance(chunk) or (None, None)
        self._stream.enter(self._conditions, context, source, levels)

    def _wake(self) -> None:
        self._replicas.wake()
