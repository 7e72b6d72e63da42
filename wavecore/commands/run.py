"""What `generate` and `restyle` share: a session's frames into the output, with its log and its summary."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wavecore import __version__
from wavecore.commands.console import progress, report
from wavecore.config import PromptAt, RunSettings
from wavecore.errors import InputError, UsageError, WavecoreError
from wavecore.files import check_output
from wavecore.interrupts import uninterrupted
from wavecore.media import (
    FrameDirectoryWriter,
    FramePicker,
    Outlet,
    VideoWriter,
    save_contact_sheet,
    write_latents,
)
from wavecore.trace import Event, Trace

if TYPE_CHECKING:
    import torch

    from wavecore.interactive.session import SpeculativeSession
    from wavecore.live import LiveFrames
    from wavecore.session import FrameGroup, Session

_SHEET_FRAMES = 16
_SHEET_COLUMNS = 8


def run_session(
    settings: RunSettings,
    start: Callable[[Trace], Session | SpeculativeSession],
    fps: Fraction | float,
    total: int | None,
    schedule: list[PromptAt],
    json_output: bool,
    live: LiveFrames | None = None,
    keep: bool = False,
) -> None:
    """Run a session to its end, or to an interrupt, and report.

    Parameters
    ----------
    settings : RunSettings
    start : callable
        Loads the model and makes the session; it gets the event log.
    fps : Fraction or float
        Frames a second of the output.
    total : int or None
        Frames to expect.
    schedule : list of PromptAt
        Prompts that follow the first; each is asked for before the group in which its time falls is taken.
    json_output : bool
    live : LiveFrames, optional
        What the session restyles, where that is a live source.
    keep : bool
        Complete the output with the frames that were made when the session fails, but for a fault of a source
        that is a file; there is no output otherwise.
    """
    with Trace(settings.events) as trace:
        began = trace.record("run", wavecore=__version__, settings=settings.model_dump(mode="json"))
        session = start(trace)
        summary = _Summary(settings, float(fps), began, live)
        fault: WavecoreError | None = None
        source = nullcontext() if live is None else closing(live)
        interrupts = partial(summary.interrupts, trace, json_output)
        with (
            interrupts(),  # those that come while processes end
            closing(session),
            source,
            interrupts(),  # before they do, which may take a while
            open_output(settings, fps) as write,
            progress("frames", total, json_output) as advance,
        ):
            due = list(schedule)
            groups = iter(session)
            while True:
                while due and due[0].at <= summary.frames / fps:
                    session.update(due.pop(0).prompt)
                try:
                    group = next(groups, None)
                except WavecoreError as error:
                    of_source = live is None and isinstance(error, InputError)
                    if not keep or not summary.frames or of_source:
                        raise
                    fault, group = error, None
                if group is None:
                    break
                if live is not None:
                    group = replace(group, frames=live.shown(group.frames))
                write(group)
                summary.add(trace, group)
                advance(len(group.frames))
        summary.finish(trace, json_output, interrupted=False)
        if fault is not None:
            raise type(fault)(f"{fault}; the {summary.frames} frames before it were made")


def check_paths(settings: RunSettings, read: Mapping[str, Path]) -> None:
    """Find out that an output cannot be written before any work is done for it.

    Parameters
    ----------
    settings : RunSettings
    read : mapping of str to Path
        Files that the run reads, by setting: no output may replace them.
    """
    _check_apart(settings, read)
    suffix = {"video": ".mp4", "latent": ".safetensors"}.get(settings.output_type)
    if suffix is not None and settings.output.suffix.lower() != suffix:
        raise UsageError(
            f"--output-path: expected a path that ends in {suffix} "
            f"(output type {settings.output_type}), got {settings.output}"
        )
    if settings.output_type not in ("raw", "mpegts"):
        check_output(settings.output, directory=settings.output_type == "frames")
    if settings.contact_sheet is not None:
        if settings.contact_sheet.suffix.lower() != ".png":
            raise UsageError(
                f"--contact-sheet: expected a path that ends in .png, got {settings.contact_sheet}"
            )
        check_output(settings.contact_sheet)


def _check_apart(settings: RunSettings, read: Mapping[str, Path]) -> None:
    """Refuse outputs that would replace another or what is read, and standard output for what is a file."""
    streamed = settings.output_type in ("raw", "mpegts")
    elsewhere = streamed and (str(settings.output) == "-" or str(settings.output).startswith("tcp:"))
    written = {
        "output_path": None if elsewhere else settings.output,
        "contact_sheet": settings.contact_sheet,
        "events": settings.events,
    }
    seen = {path.resolve(): name for name, path in read.items()}
    for name, path in written.items():
        if path is None:
            continue
        if str(path) == "-":
            raise UsageError(f"{name}: expected the path of a file, got - (standard output)")
        other = seen.setdefault(path.resolve(), name)
        if other != name:
            raise UsageError(f"{other}, {name}: expected different paths, got {path} twice")


@contextmanager
def open_output(settings: RunSettings, fps: Fraction | float) -> Iterator[Callable[[FrameGroup], None]]:
    """Open the output; it is completed at the end and by an interrupt, and removed by an error."""
    if settings.output_type == "latent":
        latents: list[torch.Tensor] = []
        try:
            yield lambda group: latents.append(group.latent)
        except KeyboardInterrupt:
            _write_latents(settings.output, latents)
            raise
        _write_latents(settings.output, latents)
    elif settings.output_type in ("raw", "mpegts"):
        with Outlet(str(settings.output), settings.output_type, fps) as outlet:  # type: ignore[arg-type]
            yield lambda group: outlet.write(group.frames)
    else:
        video = settings.output_type == "video"
        with VideoWriter(settings.output, fps) if video else FrameDirectoryWriter(settings.output) as sink:
            yield lambda group: sink.write(group.frames)


def _write_latents(path: Path, latents: list[torch.Tensor]) -> None:
    import torch

    if latents:
        with uninterrupted():
            write_latents(path, torch.stack(latents))


class _Summary:
    """The run in numbers, from the events it logs."""

    def __init__(
        self, settings: RunSettings, fps: float, began: Event, live: LiveFrames | None = None
    ) -> None:
        self.frames = 0
        self._live = live
        self._settings = settings
        self._fps = fps
        self._began = self._last = began
        self._first: Event | None = None
        self._picker = FramePicker(_SHEET_FRAMES) if settings.contact_sheet else None
        self._finished = False

    def add(self, trace: Trace, group: FrameGroup) -> None:
        """Take note of a group that was written."""
        live = self._live
        age: dict[str, Any] = {} if live is None else {"age": live.age, "waiting": live.waiting}
        self._last = trace.record(
            "display", group=group.index, version=group.version, frames=len(group.frames), **age
        )
        self._first = self._first or self._last
        self.frames += len(group.frames)
        if self._picker is not None:
            for frame in group.frames:
                self._picker.add(frame)

    @contextmanager
    def interrupts(self, trace: Trace, json_output: bool) -> Iterator[None]:
        """Finish with what there is, if that was not done yet, when the block is interrupted."""
        try:
            yield
        except KeyboardInterrupt:
            if self.frames and not self._finished:
                self.finish(trace, json_output, interrupted=True)
            raise

    def finish(self, trace: Trace, json_output: bool, interrupted: bool) -> None:
        """Write the contact sheet, end the log and print the result."""
        settings = self._settings
        with uninterrupted():
            if self._picker is not None and settings.contact_sheet is not None:
                save_contact_sheet(settings.contact_sheet, self._picker.frames(), _SHEET_COLUMNS)
            ended = trace.record("finish", frames=self.frames, interrupted=interrupted)
            self._finished = True
        first = self._first or ended
        steady = self.frames - first.data.get("frames", 0)
        streaming = self._last.time - first.time
        # Groups come in bursts, a chunk at a time: less than a second of video says nothing about the rate.
        rate = steady / streaming if steady >= self._fps and streaming > 0 else None
        result = {
            "output_path": str(settings.output),
            "output_type": settings.output_type,
            "frames": self.frames,
            "fps": self._fps,
            "seconds": self.frames / self._fps,
            "model": settings.model,
            "seed": settings.seed,
            "contact_sheet": _text(settings.contact_sheet),
            "events": _text(settings.events),
            "interrupted": interrupted,
            "wall_seconds": ended.time - self._began.time,
            "first_frame_seconds": first.time - self._began.time,
            "steady_frames_per_second": rate,
        }
        text = (
            f"{settings.output}: {self.frames} frames, {result['seconds']:.2f} s at {self._fps:g} fps; "
            f"made in {result['wall_seconds']:.1f} s, first frame after {result['first_frame_seconds']:.2f} s"
        )
        text += f", then {rate:.0f} frames/s" if rate else ""
        if self._live is not None:
            live = self._live.report()
            result["live"] = asdict(live)
            text += f"; {live.text()}"
        # Standard output may carry the frames.
        report(result, text, json_output, to_stderr=str(settings.output) == "-")
        sys.stdout.flush()


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)
