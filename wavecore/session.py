"""A stream in progress: rounds, placement and cache of one viewer, as an iterator of frame groups."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from wavecore.arguments import whole
from wavecore.cache import pages_needed
from wavecore.condition import Condition, mixtures
from wavecore.decoding import GroupPlan, start_decoding
from wavecore.errors import UsageError
from wavecore.lifetime import Belongings, weakly
from wavecore.models.bundle import StreamModel
from wavecore.models.footprint import check_stream_memory
from wavecore.placement import Handoff, LocalPlacement, local_cache
from wavecore.prompt import check_prompt
from wavecore.restyling import Restyling
from wavecore.rounds import NoiseLevel, Round, Rounds, Rules, StreamBatch
from wavecore.source import ChunkSource
from wavecore.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.interface import Place, RoundPlacement
    from wavecore.placement.layers import RingVAE


@dataclass(frozen=True)
class FrameGroup:
    """The frames of one latent.

    Attributes
    ----------
    frames : ndarray uint8 [n, h, w, 3]
        RGB; one frame in the first group, then four.
    index : int
        Number of the group, from 0; also the position of its latent.
    version : int
        Prompt version it follows: 0 for the first prompt, one more for each update.
    pts : float
        Time of its first frame in seconds.
    latent : Tensor [c, h, w]
        The clean latent it was decoded from.
    """

    frames: NDArray[np.uint8]
    index: int
    version: int
    pts: float
    latent: Tensor


def frame_hash(frames: NDArray[np.uint8]) -> str:
    """BLAKE2b of frames, 32 hexadecimal digits."""
    return hashlib.blake2b(frames.tobytes(), digest_size=16).hexdigest()


class _Complete(NamedTuple):
    """A complete chunk of which it is still to be decided whether it becomes a sink."""

    known: int  # the first round that may depend on it
    chunk: int
    version: int
    latents: Tensor
    hidden: Tensor | None


class Session:
    """One stream. Iterate for its frame groups; `update` may be called at any time, from any thread.

    A chunk follows the latest prompt at the moment it enters the first stage. Threads that iterate share the
    groups out. Made by `Pipeline.session` and `Pipeline.restyle`.

    Parameters
    ----------
    model : StreamModel
    prompt : str
    rules : Rules
        Kind and parameters of the rounds.
    levels : sequence of NoiseLevel
        One per denoising stage, and one for the store pass.
    seed : int
    size : (width, height)
        Pixels.
    fps : float
        For time stamps only.
    num_frames : int or None
        Length; endless when None.
    source : iterator of uint8 [h, w, 3], optional
        Frames to restyle; the stream then ends with them.
    trace : Trace, optional
        Event log.
    restyling : Restyling, optional
        Noise and sinks of a stream with a source; needed with one.
    hold : callable (chunks at work) -> bool, optional
        Asked before each round of a stream with a source: True runs a round in which no chunk enters, so that
        older ones go on while frames are missing.
    length : callable () -> int, optional
        Asked for the latent frames of each chunk before it is read from the source; the rules say it when not
        given. Rounds "stream_batch" only.
    place : Place, optional
        Where the rounds run: a `Ring`, which has the layers over several processes, a `SharedDevice`, which
        runs rounds together with those of other streams, a `SequencePlacement`, which has the tokens of each
        slot over several processes, or one of your own; they run here when not given.
    decoders : DecodeOptions, optional
        Processes that decode while the rounds go on; decoded here when not given.
    codec : RingVAE, optional
        Encodes and decodes on ranks of the ring; done here when not given.
    idle : callable (chunks at work) -> bool, optional
        Whether `hold` would wait for the source now: rounds in flight, and frames that are decoded elsewhere,
        are then waited for before it.

    Attributes
    ----------
    in_flight : int
        Chunks that have entered and are not complete.
    on_admit : callable (chunk)
        Called before a chunk enters, by the thread that iterates; the chunk follows what it asks for.
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
        hold: Callable[[int], bool] | None = None,
        length: Callable[[], int] | None = None,
        place: Place | None = None,
        decoders: DecodeOptions | None = None,
        codec: RingVAE | None = None,
        idle: Callable[[int], bool] | None = None,
    ) -> None:
        text = check_prompt(prompt)
        self.model = model
        self.trace = Trace() if trace is None else trace
        self.fps = fps
        self._making = threading.RLock()  # held while a group is made: a source may close the session
        self._updates = threading.Lock()  # held by `update` alone: the stream goes on while a text is encoded
        self._rules, self._levels = rules, levels
        self._stride = model.vae.temporal_factor
        self._frames_left = num_frames
        chunks = None
        if num_frames is not None:
            chunks = rules.chunks(model.latents(num_frames))
        self._rounds = Rounds(rules, chunks)
        width, height = size
        factor = model.vae.spatial_factor
        latent_size = (model.dit.config.in_channels, height // factor, width // factor)
        self._flight: deque[Round] = deque()
        self._complete: deque[_Complete] = deque()
        self._handoff = Handoff(levels, seed, latent_size, model.device)
        self._restyling, self._hold, self._length, self._idle = restyling, hold, length, idle
        self._source = None
        if source is not None:
            measure = restyling is not None and restyling.on_pixels
            vae_of_source = model.vae if codec is None else codec
            # A live source is not read ahead: its next frames may not be there.
            ahead = codec is not None and codec.encodes_elsewhere and hold is None
            self._source = ChunkSource(source, vae_of_source, size, model.device, measure, ahead)
        self._ready: deque[FrameGroup] = deque()
        self._groups = 0
        self._frames_out = 0
        self._of_chunk: dict[int, Condition] = {}
        self._closed = False
        self.in_flight = 0
        self.on_admit: Callable[[int], None] = lambda chunk: None
        self._completed_version = 0
        pages = pages_needed(rules, chunks)
        self._belongings = Belongings(self)
        self._placement: RoundPlacement
        if place is None:
            check_stream_memory(model, size, pages)
            self._cache = local_cache(model.dit, pages, *latent_size[1:])
            self._placement = LocalPlacement(model.dit, self._cache)
        else:
            self._placement = place.open(rules, pages, *latent_size[1:])
        self._belongings.add(self._placement.close)
        try:
            self._placement.probe = None if restyling is None else restyling.sink_block
            self._prompt = self._encode(0, text)
            wake = weakly(self._wake)
            self._decoding = start_decoding(model.vae, self.trace, latent_size, decoders, codec, wake)
        except BaseException:
            self._belongings.close()
            raise
        self._belongings.add(self._decoding.close)

    # -- for the user --------------------------------------------------------------------

    def update(self, prompt: str, transition: int = 1) -> int:
        """Ask for another prompt; the next chunk to enter once its text is encoded follows it.

        Parameters
        ----------
        prompt : str
        transition : int
            Chunks over which the condition goes over evenly to the new prompt; 1 changes it at once.

        Returns
        -------
        int
            Its version, which the frame groups that follow it carry.
        """
        text = check_prompt(prompt)
        whole("transition", transition, 1)
        with self._updates:
            if self._closed:
                raise UsageError("update: expected an open session, got a closed one")
            self._prompt = self._encode(self._prompt.version + 1, text, transition)
            return self._prompt.version

    def __iter__(self) -> Session:
        return self

    def __next__(self) -> FrameGroup:
        with self._making:
            while not self._ready:
                if not self._advance() and not self._deliver(wait=True):
                    raise StopIteration
                self._deliver(wait=False)
            return self._ready.popleft()

    def close(self) -> None:
        """Give up the stream's memory, once no thread makes a group; what was not taken yet is lost.

        Processes of a session that nobody closes end when it is garbage-collected.
        """
        self._closed = True
        self._wake()
        with self._making:
            self._ready.clear()
            self._of_chunk.clear()
            self._belongings.close()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one round -----------------------------------------------------------------------

    def _advance(self) -> bool:
        """Run the next round; False when the stream is over."""
        if self._closed or self._frames_left == 0:
            return False
        if self._restyling is not None:
            self._choose_sinks(self._restyling)
        if self._idle is not None and self._idle(self.in_flight) and (self._collect() or self._deliver(True)):
            return True
        if self._hold is not None and self._rounds.chunks is None and self._hold(self.in_flight):
            self._rounds.delay()
        elif self._source is not None and not self._prepare_source(self._source):
            self._rounds.finish()
        round = next(self._rounds, None)
        if round is None:
            return self._collect()
        self._admit(round)
        slots = {str(slot.stage): slot.chunk for slot in round.slots}
        with self.trace.span("round", index=round.index, slots=slots):
            text = {chunk: prompt.context for chunk, prompt in self._of_chunk.items()}
            levels = self._handoff.levels_of(round)
            self._placement.submit(round, self._handoff.latents(round), levels, text)
            self._flight.append(round)
        if len(self._flight) == self._placement.depth:
            self._collect()
        return True

    def _collect(self) -> bool:
        """Take the results of the oldest round in flight; False when there is none."""
        if not self._flight:
            return False
        round = self._flight.popleft()
        complete = self._handoff.advance(round, self._placement.collect())
        if complete is not None and round.completes is not None:
            self.in_flight -= 1
            self._decode(round.completes, complete)
            done = round.completes
            if self._restyling is not None:
                probed = self._restyling.sink_block is not None
                hidden = self._placement.embeddings.get(self._rules.steps - 1) if probed else None
                lag = self._rules.lag if isinstance(self._rules, StreamBatch) else 1
                version = self._of_chunk[done].version
                self._complete.append(_Complete(round.index + lag, done, version, complete, hidden))
            self._of_chunk = {chunk: prompt for chunk, prompt in self._of_chunk.items() if chunk >= done}
        return True

    def _choose_sinks(self, restyling: Restyling) -> None:
        """Let chunks become sinks from the round on by which every placement knows that they are complete."""
        while self._complete and self._complete[0].known <= self._rounds.index:
            done = self._complete.popleft()
            if done.version != self._completed_version:
                self._completed_version = done.version
                restyling.prompt_changed()
            self._placement.drop(
                restyling.completed(
                    done.chunk, done.latents, self.model.dit, self._rounds, self.trace, done.hidden
                )
            )

    def _prepare_source(self, source: ChunkSource) -> bool:
        """Have the frames of the next chunk encoded; False when there are none left."""
        if source.ready:
            return True
        chunk, rules = self._rounds.entered, self._rounds.rules
        if self._length is not None and isinstance(rules, StreamBatch):
            self._rounds.rules = rules = rules.resize(self._length(), self._rounds.index)
        with self.trace.span("encode", chunk=chunk, frames=rules.frames(chunk)):
            return source.prepare(rules.frames(chunk))

    def _admit(self, round: Round) -> None:
        """Give the chunks that enter the latest prompt and, when restyling, their source."""
        for slot in round.slots:
            if slot.stage or slot.chunk in self._of_chunk:
                continue
            self.on_admit(slot.chunk)
            prompt = self._of_chunk[slot.chunk] = self._prompt.next()
            self.in_flight += 1
            self.trace.record("admit", chunk=slot.chunk, version=prompt.version)
            if self._source is not None and self._restyling is not None:
                self._restyling.enter(self._handoff, slot.chunk, self._source, self.trace)

    def _decode(self, chunk: int, latents: Tensor) -> None:
        """Have a complete chunk [c, f, h, w] turned into frame groups."""
        version = self._of_chunk[chunk].version
        for latent in latents.unbind(1):
            left = self._frames_left if self._source is None else self._source.frames_left(self._frames_out)
            if left == 0:
                break
            count = self._stride if self._groups else 1
            count = count if left is None else min(count, left)
            pts = self._frames_out / self.fps
            self._decoding.put(GroupPlan(self._groups, version, pts, chunk, latent.clone(), count))
            self._deliver(wait=False)
            self._groups += 1
            self._frames_out += count
            if self._frames_left is not None:
                self._frames_left -= count

    def _deliver(self, wait: bool) -> bool:
        """Make what is decoded ready; False when nothing was, after having waited for a group if told to."""
        delivered = False
        while (taken := self._decoding.take(wait)) is not None:
            plan, frames = taken
            group = FrameGroup(frames, plan.index, plan.version, plan.pts, plan.latent)
            logged: dict[str, Any] = {"group": group.index, "version": group.version, "frames": len(frames)}
            if self.trace.path is not None:
                logged["hash"] = frame_hash(frames)
            self.trace.record("ready", **logged)
            self._ready.append(group)
            delivered, wait = True, False
        return delivered

    def _wake(self) -> None:
        """Frames have come from a process that decodes, or none are wanted any more; from any thread."""

    # -- helpers -------------------------------------------------------------------------

    @torch.inference_mode()
    def _encode(self, version: int, text: str, transition: int = 1) -> Condition:
        self.trace.record("prompt", version=version, prompt=text, transition=transition)
        encode = self._placement.encode_text
        with self.trace.span("text", version=version):
            features = self.model.encode_text([text])
            context = encode(features)
        origin = self._prompt.features if version else features
        way = mixtures(encode, origin, features, transition)
        return Condition(version, text, features, context, way)
