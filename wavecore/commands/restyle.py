"""`wavecore restyle`."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.options import Command, config_option, json_option, settings_options
from wavecore.commands.run import check_paths, run_session
from wavecore.config import RestyleSettings, files_read, load_settings
from wavecore.errors import InputError
from wavecore.media import LiveSource, PacedFile, VideoReader, open_camera, open_pipe, open_tcp, parse_address
from wavecore.placing import Placing
from wavecore.trace import Trace

if TYPE_CHECKING:
    from wavecore.control.streaming import NoiseSettings, StreamingSettings
    from wavecore.live import LiveFrames
    from wavecore.pipeline import Pipeline
    from wavecore.session import Session


@click.command("restyle", cls=Command)
@click.argument("input", required=False)
@click.argument("prompt", required=False)
@settings_options(RestyleSettings)
@config_option
@json_option
def command(config: str | None, json_output: bool, **flags: Any) -> None:
    """Restyle the video INPUT after PROMPT, keeping its motion: as many frames out as in.

    With --source or --realtime the input is live: frames come out with bounded delay.
    """
    settings = load_settings(RestyleSettings, flags, config)
    if settings.placement == "layers" and int(os.environ.get("RANK", "0")) > 0:  # started by torchrun
        from wavecore.placement.layers import worker

        worker.main()
        return
    check_paths(settings, files_read(flags, config))
    _check_addresses(settings)
    if settings.live:
        _restyle_live(settings, json_output)
        return
    source = VideoReader(settings.input, fps=settings.fps)  # a bad input is found before the model is loaded

    def start(trace: Trace) -> Session:
        pipe = settings.load()
        frames = VideoReader(settings.input, size=settings.size or pipe.size, fps=settings.fps)
        return _session(settings, pipe, iter(frames), float(frames.fps), trace)

    over_processes = settings.placement != "local" or settings.decoders > 0
    run_session(settings, start, source.fps, source.frames, [], json_output, keep=over_processes)


def _restyle_live(settings: RestyleSettings, json_output: bool) -> None:
    """Restyle frames as they come; what was made before a fault of the source is complete."""
    if settings.source == "file":
        VideoReader(settings.input)  # as above
    pipe = settings.load()
    size = settings.size or pipe.size
    _warm_up(pipe, settings, size)
    source = _open(settings, size)
    fps = settings.fps or float(source.fps or pipe.fps)
    frames: LiveFrames | None = None

    def start(trace: Trace) -> Session:
        assert frames is not None
        session = _session(settings, pipe, frames, fps, trace, frames)
        frames.attach(trace)
        return session

    from wavecore.control.streaming import IntakeSettings
    from wavecore.live import LiveFrames

    stride = pipe.model.vae.temporal_factor
    ranks = 1
    if settings.placement == "layers":
        ranks = Placing(placement="layers", devices=settings.devices).ranks
    longest = _longest_chunk(settings, pipe)
    frames = LiveFrames(
        source,
        IntakeSettings(
            slo=settings.latency,
            passes=settings.steps * ranks,
            realtime=settings.realtime,
            lengths=(1,) if longest is None else tuple(range(1, longest + 1)),
        ),
        lambda first: 1 if first else stride * (settings.chunk_latents or 1),
        settings.timeout,
    )
    try:
        run_session(settings, start, fps, None, [], json_output, frames, keep=True)
    except InputError:
        report = frames.report()
        if report.emitted or report.fault is None:
            raise
        raise InputError(report.fault) from None  # rather than that there is no frame to write
    fault = frames.report().fault
    if fault is not None:
        raise InputError(f"{fault}; the {frames.report().emitted} frames before it were made")


def _check_addresses(settings: RestyleSettings) -> None:
    """Find out that an address is none before the model is loaded for it."""
    target = str(settings.output)
    streamed = settings.output_type in ("raw", "mpegts") and target.startswith("tcp:")
    addresses = {"input": str(settings.input)} if settings.source == "tcp" else {}
    addresses |= {"output_path": target.removeprefix("tcp:")} if streamed else {}
    for name, address in addresses.items():
        parse_address(address, name)


def _open(settings: RestyleSettings, size: tuple[int, int]) -> LiveSource:
    if settings.source == "camera":
        return open_camera(str(settings.input), size)
    if settings.source == "pipe":
        return open_pipe(size, settings.raw_size, settings.timeout)
    if settings.source == "tcp":
        return open_tcp(str(settings.input), size, settings.raw_size, settings.timeout)
    return PacedFile(settings.input, size, settings.fps)


def _warm_up(pipe: Pipeline, settings: RestyleSettings, size: tuple[int, int]) -> None:
    """Run a few frames, so that the first of the source do not wait for what is loaded at first use."""
    import numpy as np

    width, height = size
    black = [np.zeros((height, width, 3), np.uint8)] * (1 + 2 * pipe.model.vae.temporal_factor)
    with pipe.restyle(iter(black), settings.prompt, steps=settings.steps, size=size) as session:
        for _ in session:
            pass


def _session(
    settings: RestyleSettings,
    pipe: Pipeline,
    frames: Any,
    fps: float,
    trace: Trace,
    live: LiveFrames | None = None,
) -> Session:
    return pipe.restyle(
        frames,
        settings.prompt,
        seed=settings.seed,
        steps=settings.steps,
        strength=settings.strength,
        size=settings.size or pipe.size,
        fps=fps,
        rounds="stream_batch" if settings.live or settings.placement == "layers" else settings.rounds,
        placement=settings.placement,
        devices=settings.devices,
        encode_on=settings.encode_on,
        decode_on=settings.decode_on,
        decoders=settings.decoders,
        streaming=_streaming(settings, pipe),
        hold=None if live is None else live.hold,
        length=None if live is None or _longest_chunk(settings, pipe) is None else live.length,
        idle=None if live is None else live.idle,
        trace=trace,
    )


def _longest_chunk(settings: RestyleSettings, pipe: Pipeline) -> int | None:
    """Latent frames up to which the chunks of a live source may grow; None where their length is fixed."""
    return pipe.model.defaults.chunk_frames if settings.live and settings.chunk_latents is None else None


def _noise(settings: RestyleSettings, pipe: Pipeline) -> NoiseSettings | None:
    """How noise follows motion; None where it does not."""
    from wavecore.control.streaming import NoiseSettings
    from wavecore.restyling import motion_noise

    if settings.noise == "fixed":
        return None
    given: dict[str, Any] = {"highest": settings.strength, "span": settings.noise_span}
    changes = {name: value for name, value in given.items() if value is not None}
    if settings.noise == "motion":
        return motion_noise(pipe.model.defaults, **changes)
    return NoiseSettings(mode="compatible", **({"highest": pipe.model.defaults.strength} | changes))


def _streaming(settings: RestyleSettings, pipe: Pipeline) -> StreamingSettings:
    from wavecore.control.streaming import StreamingSettings

    return StreamingSettings(
        noise=_noise(settings, pipe),
        sinks=settings.sinks,
        sink_chunks=settings.sink_chunks,
        sink_block=settings.sink_block,
        chunk_frames=settings.chunk_latents or (1 if settings.live else None),
        first_chunk_frames=1 if settings.live else None,
        longest_chunk_frames=_longest_chunk(settings, pipe),
        position_limit=settings.position_limit,
    )
