"""A loaded model: makes sessions, restyles video, and answers the one-shot call."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args, overload

import numpy as np
import torch
from torch import Tensor

from wavecore.arguments import choice, frame_rate, pixels, positive, share, whole
from wavecore.control.streaming import NoiseController, StreamingSettings
from wavecore.errors import UsageError, WavecoreError
from wavecore.interactive.session import SpeculativeSession, start_session
from wavecore.interactive.speculation import Speculation
from wavecore.models.bundle import StreamModel
from wavecore.placing import PlacementName, Placing, closed_on_error
from wavecore.prompt import check_prompt
from wavecore.recording import describe
from wavecore.restyling import Restyling, start_ring, streaming_rules
from wavecore.rounds import NoiseLevel, RoundsKind, Rules
from wavecore.session import Session
from wavecore.trace import Trace

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image
    from typing_extensions import Unpack

    from wavecore.placement.decode import DecodeOptions
    from wavecore.placement.device import SharedDevice
    from wavecore.placement.replicas import ReplicaOptions, Replicas
    from wavecore.placement.sequence import SequenceMode
    from wavecore.session_options import SessionOptions

OutputType = Literal["np", "pil", "pt", "latent"]


@dataclass(frozen=True)
class PipelineOutput:
    """Result of the one-shot call.

    Attributes
    ----------
    frames : ndarray [b, f, h, w, 3] in [0, 1], list of lists of PIL images, Tensor [b, f, 3, h, w] in
        [0, 1], or latents Tensor [b, n, c, h, w], by `output_type`.
    """

    frames: NDArray[np.float32] | list[list[Image]] | Tensor


class Pipeline:
    """A model that is loaded once and serves any number of sessions.

    It can be pickled, with all weights. A process that was forked from the one that made it can use it only
    while PyTorch has one thread: the others are not there, and would be waited for without end.

    Parameters
    ----------
    model : StreamModel
    """

    def __init__(self, model: StreamModel) -> None:
        self.model = model
        self._process = os.getpid()

    def __reduce__(self) -> tuple[type[Pipeline], tuple[StreamModel]]:
        return type(self), (self.model,)

    @property
    def size(self) -> tuple[int, int]:
        """Width and height the model was trained at, in pixels."""
        return self.model.defaults.size

    @property
    def fps(self) -> float:
        """Frames a second the model was trained at."""
        return self.model.defaults.fps

    @overload
    def session(
        self, prompt: str, *, control: Literal["free"] = "free", **options: Unpack[SessionOptions]
    ) -> Session: ...

    @overload
    def session(
        self, prompt: str, *, control: Literal["speculative"], **options: Unpack[SessionOptions]
    ) -> SpeculativeSession: ...

    @overload
    def session(
        self, prompt: str, *, control: Literal["free", "speculative"], **options: Unpack[SessionOptions]
    ) -> Session | SpeculativeSession: ...

    def session(
        self,
        prompt: str,
        *,
        seed: int = 0,
        steps: int = 4,
        num_frames: int | None = None,
        seconds: float | None = None,
        size: tuple[int, int] | None = None,
        fps: float | None = None,
        rounds: RoundsKind | None = None,
        placement: PlacementName = "local",
        devices: int | None = None,
        split: SequenceMode | None = None,
        decoders: int | DecodeOptions = 0,
        control: Literal["free", "speculative"] = "free",
        speculation: Speculation | None = None,
        trace: Trace | None = None,
        replicas: Replicas | ReplicaOptions | None = None,
        shared: SharedDevice | None = None,
    ) -> Session | SpeculativeSession:
        """Start a stream of frames from a prompt.

        Parameters
        ----------
        prompt : str
            What the video shows.
        seed : int
            The same seed gives the same frames.
        steps : int
            Denoising steps.
        num_frames : int, optional
            Length in frames; endless when neither it nor `seconds` is given.
        seconds : float, optional
            Length in seconds.
        size : (width, height), optional
            Pixels; the model's own when not given.
        fps : float, optional
            Frames a second of the time stamps; the model's own when not given.
        rounds : "wavefront", "sequential" or "stream_batch", optional
            Order of the work; the one the model was distilled for when not given.
        placement : "local", "replicas", "layers" or "sequence"
            Where the work runs: on one device; with the denoising stages and the store pass over processes
            (wave parallelism; rounds "wavefront"); with the layers over a ring of processes
            (control "speculative", or rounds "stream_batch"); or with the tokens of a chunk split over
            processes (sequence parallelism; control "free").
        devices, split, decoders, replicas
            See `wavecore.placing.Placing`.
        control : "free" or "speculative"
            When work is done: as fast as possible, or far ahead of playback and again where a new prompt
            replaces what was not shown.
        speculation : Speculation, optional
            Parameters of speculative control.
        trace : Trace, optional
            Event log.
        shared : SharedDevice, optional
            Runs calls of control "speculative" on a causal model in one batch with those of other sessions.

        Raises
        ------
        UsageError
            An argument is wrong; the message names it.
        """
        self._check_process()
        check_prompt(prompt)
        choice("placement", placement, get_args(PlacementName))
        choice("control", control, ("free", "speculative"))
        if speculation is not None and control != "speculative":
            raise UsageError(f"speculation: expected none with control {control!r}, got {speculation}")
        fps = self.fps if fps is None else fps
        frame_rate("fps", fps)
        if seconds is not None:
            if num_frames is not None:
                raise UsageError("num_frames: expected num_frames or seconds, got both")
            num_frames = max(1, round(positive("seconds", seconds) * fps))
        if num_frames is not None:
            whole("num_frames", num_frames, 1)
        whole("seed", seed)
        rules, levels, size = self.rules(rounds, steps), self.levels(steps), self._checked_size(size)
        placing = Placing(
            placement=placement, devices=devices, split=split, replicas=replicas, decoders=decoders
        )
        if control == "speculative":
            place = placing.calls(self.model, rules, trace, shared)
            chosen = Speculation() if speculation is None else speculation
            return start_session(
                self.model, prompt, chosen, rules, levels, seed, size, fps, num_frames, trace, place
            )
        self._causal("control 'free'")
        placing.check_memory(self.model, size, rules, num_frames)
        if trace is not None:
            described = describe(self.model, rules, seed, size, fps, num_frames, placement)
            trace.record("session", control="free", **described, devices=devices, split=split)
        return placing.start(self.model, prompt, rules, levels, seed, size, fps, num_frames, trace=trace)

    def restyle(
        self,
        frames: Iterable[NDArray[np.uint8]],
        prompt: str,
        *,
        seed: int = 0,
        steps: int = 4,
        strength: float | None = None,
        size: tuple[int, int] | None = None,
        fps: float | None = None,
        rounds: RoundsKind | None = None,
        placement: Literal["local", "layers", "replicas"] = "local",
        devices: int | None = None,
        shared: SharedDevice | None = None,
        streaming: StreamingSettings | None = None,
        hold: Callable[[int], bool] | None = None,
        length: Callable[[], int] | None = None,
        idle: Callable[[int], bool] | None = None,
        encode_on: int = 0,
        decode_on: int = 0,
        decoders: int | DecodeOptions = 0,
        trace: Trace | None = None,
    ) -> Session:
        """Render frames anew under a prompt, keeping their motion: as many frames out as in.

        The source is encoded and noised to `strength`, and denoised from there (SDEdit; the
        video-to-video way of StreamDiffusionV2).

        Parameters
        ----------
        frames : iterable of uint8 [h, w, 3]
            Source at `size`, arrays or RGB images; may be endless.
        strength : float, optional
            Share of noise to begin with, within (0, 1]: more follows the prompt, less the source. The
            highest of `streaming.noise` where that is given.
        streaming : StreamingSettings, optional
            Policies of a live source: noise, sinks, positions, chunk lengths.
        hold, length, idle : callable, optional
            When the next chunk enters, how many latent frames it has, and whether it is waited for now; see
            `Session`.
        encode_on, decode_on : int
            Ranks of placement layers that encode and decode, beside their layers.
        decoders : int or DecodeOptions
            Processes that decode while the rounds go on; 0 decodes in this one.
        placement : "local", "layers" or "replicas"
            Where the work runs: here; its layers over a ring of `devices` processes; or, of a source that is
            not live, its stages over processes (rounds "wavefront").
        devices : int, optional
            Processes of placement layers, this one included, 2 when not given; or of replicas, see
            `wavecore.placing.Placing`.
        shared : SharedDevice, optional
            Runs this stream in one batch with others, each in a thread of its own.
        prompt, seed, steps, size, fps, rounds, trace
            As for `session`.
        """
        self._check_process()
        check_prompt(prompt)
        choice("placement", placement, ("local", "layers", "replicas"))
        if placement == "replicas" and (hold is not None or length is not None or shared is not None):
            raise UsageError("placement: expected local or layers for a live or shared stream, got replicas")
        self._causal("restyling")
        whole("seed", seed)
        strength = self.model.defaults.strength if strength is None else strength
        share("strength", strength)
        streaming = StreamingSettings() if streaming is None else streaming
        rules, sinks = streaming_rules(self.rules(rounds, steps), streaming)
        layers = self.model.dit.config.layers
        if streaming.sink_block is not None and not 0 <= streaming.sink_block < layers:
            raise UsageError(
                f"sink_block: expected a layer from 0 to {layers - 1}, got {streaming.sink_block}"
            )
        noise = None if streaming.noise is None else NoiseController(streaming.noise)
        if noise is not None:
            strength = noise.strength
        levels, size = self.levels(steps, strength), self._checked_size(size)
        fps = self.fps if fps is None else fps
        frame_rate("fps", fps)
        if not isinstance(frames, Iterable):
            raise UsageError(f"frames: expected an iterable of frames, got {type(frames).__name__}")
        source, ring = iter(frames), None
        placing = Placing(placement=placement, devices=devices, decoders=decoders)
        workers = placing.decode_options()
        if shared is None:  # which has memory of its own
            placing.check_memory(self.model, size, rules)
        if placement == "layers":
            rules, ring = start_ring(self.model, rules, placing.ranks, trace, encode_on, decode_on)
        elif encode_on or decode_on:
            raise UsageError(f"encode_on, decode_on: expected 0 with placement {placement}, got another rank")
        elif placement == "local":
            placing.check_one()
        restyling = Restyling(
            lambda strength: self.levels(steps, strength),
            noise,
            sinks,
            self.model.defaults.shift,
            streaming.sink_block,
        )
        if placement == "replicas":
            return placing.start(
                self.model, prompt, rules, levels, seed, size, fps, None, source, trace, restyling
            )
        with closed_on_error(ring):
            return Session(
                self.model,
                prompt,
                rules,
                levels,
                seed,
                size,
                fps,
                source=source,
                trace=trace,
                restyling=restyling,
                hold=hold,
                length=length,
                place=shared if ring is None else ring,
                decoders=workers,
                codec=None if ring is None else ring.vae,
                idle=idle,
            )

    def __call__(
        self,
        prompt: str | list[str],
        *,
        num_frames: int = 81,
        height: int | None = None,
        width: int | None = None,
        num_inference_steps: int = 4,
        generator: torch.Generator | None = None,
        output_type: OutputType = "np",
        rounds: RoundsKind | None = None,
    ) -> PipelineOutput:
        """Make whole clips, in the manner of diffusers' pipelines.

        Parameters
        ----------
        prompt : str or list of str
            One clip each.
        num_frames : int
            Frames of each clip.
        height, width : int, optional
            Pixels; the model's own when not given.
        num_inference_steps : int
            Denoising steps.
        generator : torch.Generator, optional
            Its initial seed is the seed of the first clip; further clips count up from it.
        output_type : "np", "pil", "pt" or "latent"
            See `PipelineOutput`.
        rounds : str
            Order of the work.
        """
        choice("output_type", output_type, get_args(OutputType))
        whole("num_frames", num_frames, 1)
        if not isinstance(prompt, str | Sequence):
            raise UsageError(f"prompt: expected a text or a list of texts, got {prompt!r}")
        prompts = [prompt] if isinstance(prompt, str) else list(prompt)
        if not prompts:
            raise UsageError("prompt: expected at least one, got an empty list")
        if not isinstance(generator, torch.Generator | None):
            raise UsageError(f"generator: expected a torch.Generator, got {generator!r}")
        seed = 0 if generator is None else generator.initial_seed()
        size = self.size[0] if width is None else width, self.size[1] if height is None else height
        clips, latents = [], []
        for index, text in enumerate(prompts):
            with self.session(
                text,
                seed=seed + index,
                steps=num_inference_steps,
                num_frames=num_frames,
                size=size,
                rounds=rounds,
            ) as session:
                groups = list(session)
            clips.append(np.concatenate([group.frames for group in groups]))
            latents.append(torch.stack([group.latent for group in groups]))
        if output_type == "latent":
            return PipelineOutput(torch.stack(latents))
        if output_type == "pil":
            from PIL import Image

            return PipelineOutput([[Image.fromarray(frame) for frame in clip] for clip in clips])
        scaled = np.stack(clips).astype(np.float32) / np.float32(255)
        if output_type == "pt":
            return PipelineOutput(torch.from_numpy(scaled).movedim(-1, 2))
        return PipelineOutput(scaled)

    def rules(self, rounds: RoundsKind | None, steps: int) -> Rules:
        """Rounds as the model was trained to stream; see `StreamDefaults.rules`."""
        return self.model.defaults.rules(rounds, steps)

    def levels(self, steps: int, strength: float = 1.0) -> tuple[NoiseLevel, ...]:
        """Noise level of each stage; see `StreamDefaults.levels`."""
        return self.model.defaults.levels(steps, strength)

    def _check_process(self) -> None:
        if os.getpid() != self._process and torch.get_num_threads() > 1:
            raise WavecoreError(
                "session: expected the process that made the pipeline, or one spawned from it, got a forked "
                "one, where PyTorch's threads are missing: use multiprocessing's spawn, or "
                "torch.set_num_threads(1)"
            )

    def _causal(self, use: str) -> None:
        if self.model.defaults.joint_latents is not None:
            raise UsageError(f"model: expected a causal model for {use}, got {self.model.name}")

    def _checked_size(self, size: tuple[int, int] | None) -> tuple[int, int]:
        patch, factor = self.model.dit.config.patch, self.model.vae.spatial_factor
        return pixels(self.size if size is None else size, factor * patch[2], factor * patch[1])
