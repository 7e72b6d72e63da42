"""Settings of the commands: typed, from flags and a YAML file, with errors that name the flag or the path.

A key of the file is the name of a flag, with hyphens or underscores. A flag given on the command line goes
before the file, the file before the default.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from wavecore.control.adapter_name import AdapterName
from wavecore.errors import UsageError
from wavecore.faults import fault, first_fault, read_yaml, shown, usage_error
from wavecore.model_settings import FilePath, ModelSettings
from wavecore.prompt import prompt_fault
from wavecore.rounds import RoundsKind

Settings = TypeVar("Settings", bound=BaseModel)


def _prompt(value: object) -> object:
    wrong = prompt_fault(value)
    if wrong is not None:
        raise fault(wrong)
    return value


def _size(value: object) -> object:
    match = re.fullmatch(r"\s*(\d{1,6})\s*[xX×]\s*(\d{1,6})\s*", value) if isinstance(value, str) else None
    if match is None or 0 in (int(match[1]), int(match[2])):
        raise fault(f"expected WIDTHxHEIGHT in pixels, such as 128x128, got {shown(value)}")
    return int(match[1]), int(match[2])


def _no_bool(value: object) -> object:
    if isinstance(value, bool):
        raise fault(f"expected a number, got {shown(value)}")
    return value


def _choice(value: object) -> object:
    return value.replace("-", "_") if isinstance(value, str) else value


def _hyphens(value: object) -> object:
    return value.replace("_", "-") if isinstance(value, str) else value


def _schedule(value: object) -> object:
    return read_schedule(value) if isinstance(value, str | os.PathLike) else value


Prompt = Annotated[str, BeforeValidator(_prompt)]
Size = Annotated[tuple[int, int], BeforeValidator(_size)]
Count = Annotated[int, BeforeValidator(_no_bool), Field(ge=1)]
Natural = Annotated[int, BeforeValidator(_no_bool), Field(ge=0)]
Seed = Annotated[int, BeforeValidator(_no_bool), Field(ge=0, lt=2**63)]
Positive = Annotated[FiniteFloat, BeforeValidator(_no_bool), Field(gt=0)]
Share = Annotated[FiniteFloat, BeforeValidator(_no_bool), Field(gt=0, le=1)]
Seconds = Annotated[FiniteFloat, BeforeValidator(_no_bool), Field(ge=0)]


class PromptAt(BaseModel):
    """An entry of a prompt schedule: the prompt that is asked for when the video reaches a time."""

    model_config = ConfigDict(extra="forbid")

    at: Seconds = Field(description="time in the video, in seconds")
    prompt: Prompt = Field(description="the prompt from then on")


def _in_order(entries: list[PromptAt]) -> list[PromptAt]:
    if not entries:
        raise fault("expected at least one entry, got none")
    for index in range(1, len(entries)):
        before, at = entries[index - 1].at, entries[index].at
        if at <= before:
            raise fault(f"entry {index}: expected `at` above {before:g} (the entry before), got {at:g}")
    return entries


Schedule = Annotated[list[PromptAt], AfterValidator(_in_order)]


class RunSettings(ModelSettings):
    """What `generate` and `restyle` share."""

    seed: Seed = Field(0, description="seed of the noise")
    steps: Count = Field(4, description="denoising steps")
    size: Size | None = Field(None, description="WIDTHxHEIGHT in pixels; the model's own when left out")
    rounds: Annotated[RoundsKind | None, BeforeValidator(_choice)] = Field(
        None, description="order of the work; the one the model was distilled for when left out"
    )
    placement: Literal["local", "replicas", "layers", "sequence"] = Field(
        "local",
        description="where the work runs: here, a process a denoising stage and one for the store, layers "
        "over a ring of processes, or the tokens of a chunk split over processes",
    )
    output_path: FilePath | None = Field(
        None, description="where to write: output.mp4, output (frames), output.safetensors when left out"
    )
    output_type: Literal["video", "frames", "latent"] = Field(
        "video", description="H.264 mp4, a directory of PNG files, or latents as safetensors"
    )
    contact_sheet: FilePath | None = Field(None, description="also write a PNG that shows the clip")
    events: FilePath | None = Field(None, description="write the event log (JSON lines)")

    @property
    def output(self) -> Path:
        """Path to write to."""
        if self.output_path is not None:
            return self.output_path
        names = {"video": "output.mp4", "frames": "output", "latent": "output.safetensors"}
        return Path(names[self.output_type])


class GenerateSettings(RunSettings):
    """Settings of `wavecore generate`."""

    prompt: Prompt | None = Field(None, description="what the video shows")
    prompts: Annotated[Schedule | None, BeforeValidator(_schedule)] = Field(
        None, description="prompt schedule: a YAML list of {at: seconds, prompt: text}"
    )
    seconds: Positive | None = Field(None, description="length in seconds, 5 when no length is given")
    num_frames: Count | None = Field(None, description="length in frames, instead of seconds")
    fps: Positive = Field(16, description="frames a second")
    devices: Count | None = Field(
        None,
        description="processes of placement layers and sequence (2 when left out), or replicas (at most "
        "steps + 1; as many as there are cores when left out)",
    )
    split: Literal["ulysses", "ring"] | None = Field(
        None, description="how placement sequence attends, ulysses when left out"
    )
    decoders: Natural = Field(0, description="processes that decode; 0 decodes in this one")
    control: Literal["free", "speculative"] = Field(
        "free",
        description="when work is done: as fast as possible, or far ahead and again after a new prompt",
    )
    adapter: Annotated[AdapterName | None, BeforeValidator(_hyphens)] = Field(
        None, description="speculative: how a branch continues; the first that fits the model when left out"
    )
    latents: Count | None = Field(None, description="speculative: latents of a call, 12 when left out")
    fallback: Literal["freeze", "drop", "stale", "retarget"] | None = Field(
        None, description="speculative: what covers a loss, freeze when left out"
    )
    pacing: Literal["real", "virtual"] | None = Field(
        None, description="speculative: playback in real time, or at once on a virtual clock (when left out)"
    )

    @model_validator(mode="after")
    def _consistent(self) -> GenerateSettings:
        if self.seconds is not None and self.num_frames is not None:
            raise fault("expected one of them, got both", "seconds", "num_frames")
        for name in ("adapter", "latents", "fallback", "pacing"):
            if self.control == "free" and getattr(self, name) is not None:
                raise fault("expected only with control speculative, got control free", name)
        starts = self.prompts is not None and self.prompts[0].at == 0
        if self.prompt is None and not starts:
            expected = "PROMPT, or a prompt schedule with an entry at 0"
            raise fault(f"expected {expected}, got {'neither' if self.prompts else 'no prompt'}")
        if self.prompt is not None and starts:
            raise fault("expected PROMPT or a prompt schedule with an entry at 0, got both")
        return self

    @property
    def frames(self) -> int:
        """Frames to make: at least one."""
        if self.num_frames is not None:
            return self.num_frames
        return max(1, round((5 if self.seconds is None else self.seconds) * self.fps))

    @property
    def schedule(self) -> list[PromptAt]:
        """Prompts in order of time, the first at 0."""
        first = [] if self.prompt is None else [PromptAt(at=0, prompt=self.prompt)]
        return first + (self.prompts or [])


class RestyleSettings(RunSettings):
    """Settings of `wavecore restyle`."""

    input: FilePath = Field(
        description="video file to restyle; camera device, - (pipe) or HOST:PORT to listen on, by --source"
    )
    prompt: Prompt = Field(description="what it shall show")
    strength: Share | None = Field(
        None,
        description="share of noise to begin with, above 0 and up to 1: more follows the prompt, less the "
        "input; the model's own when left out",
    )
    fps: Positive | None = Field(
        None, description="frames a second to take from the input; every frame once when left out"
    )
    placement: Literal["local", "layers", "replicas"] = Field(  # type: ignore[assignment]
        "local",
        description="where the work runs: here, its layers over a ring of processes, or its stages over some",
    )
    devices: Count | None = Field(
        None,
        description="processes of placement layers, this one included (2 when left out), or replicas (at "
        "most steps + 1; as many as there are cores when left out)",
    )
    encode_on: Natural = Field(0, description="rank of placement layers that encodes, beside its layers")
    decode_on: Natural = Field(0, description="rank of placement layers that decodes, beside its layers")
    decoders: Natural = Field(0, description="processes that decode; 0 decodes in this one")
    output_type: Literal["video", "frames", "latent", "raw", "mpegts"] = Field(  # type: ignore[assignment]
        "video",
        description="H.264 mp4, PNG files or latents; as they are made: rgb24 bytes or H.264 in MPEG-TS",
    )
    source: Literal["file", "camera", "pipe", "tcp"] = Field("file", description="where the input comes from")
    realtime: bool = Field(
        False, description="play a file at its own pace, and drop input frames rather than fall behind"
    )
    latency: Positive = Field(1.0, description="objective: seconds from a frame's arrival to its output")
    timeout: Positive = Field(10.0, description="seconds without a frame after which a live source has ended")
    raw_size: Size | None = Field(
        None, description="WIDTHxHEIGHT of rgb24 frames of a pipe or connection; encoded when left out"
    )
    noise: Literal["fixed", "motion", "compatible"] = Field(
        "fixed",
        description="noise after the motion of the input: not, on latents, or as the public code does",
    )
    noise_span: Share | None = Field(None, description="by how much full motion lowers the noise")
    chunk_latents: Count | None = Field(
        None,
        description="latent frames of a chunk (stream_batch): the model's own when left out; of a live "
        "source as many, from 1 up to that, as it takes to keep up",
    )
    sinks: Literal["adaptive", "static", "off"] | None = Field(
        None, description="chunks that stay in the context (stream_batch): the model's own when left out"
    )
    sink_chunks: Count | None = Field(None, description="how many")
    sink_block: Annotated[int | None, BeforeValidator(_no_bool), Field(ge=0)] = Field(
        None, description="layer after which adaptive sinks are compared; the patch embedding when left out"
    )
    position_limit: Count | None = Field(None, description="bound of temporal positions (stream_batch)")

    @property
    def live(self) -> bool:
        """Whether frames come over time."""
        return self.source != "file" or self.realtime

    @property
    def output(self) -> Path:
        """Path to write to; standard output for what is written while it is made."""
        if self.output_path is None and self.output_type in ("raw", "mpegts"):
            return Path("-")
        return super().output

    @model_validator(mode="after")
    def _consistent(self) -> RestyleSettings:
        if self.live and self.rounds not in (None, "stream_batch"):
            raise fault(f"expected stream_batch for a live source, got {self.rounds}", "rounds")
        if self.placement == "layers" and self.rounds not in (None, "stream_batch"):
            raise fault(f"expected stream_batch with placement layers, got {self.rounds}", "rounds")
        if self.raw_size is not None and self.source not in ("pipe", "tcp"):
            raise fault(f"expected only with source pipe or tcp, got source {self.source}", "raw_size")
        if (self.source == "pipe") != (str(self.input) == "-"):
            expected = "a path, or - (standard input) with source pipe"
            raise fault(f"expected {expected}, got {self.input} with source {self.source}", "input")
        for name in ("latency", "timeout"):
            if name in self.model_fields_set and not self.live:
                raise fault("expected only with a live source, by --source or --realtime, got a file", name)
        if self.noise_span is not None and self.noise == "fixed":
            raise fault("expected only with noise motion or compatible, got fixed", "noise_span")
        if self.sink_block is not None and self.sinks != "adaptive":
            raise fault(f"expected only with sinks adaptive, got {self.sinks or 'none given'}", "sink_block")
        if self.sink_chunks is not None and self.sinks == "off":
            raise fault("expected none with sinks off, got some", "sink_chunks")
        if self.decode_on and self.decoders:
            raise fault("expected one of them, got both", "decode_on", "decoders")
        return self


# One of each is in force: a flag also puts aside the other one's value from the file.
_EITHER = ({"seconds", "num_frames"},)


def load_settings(
    kind: type[Settings], flags: Mapping[str, Any], config: str | os.PathLike[str] | None = None
) -> Settings:
    """Check settings from flags and a YAML file.

    Parameters
    ----------
    kind : type
        A settings class of this module.
    flags : mapping
        Field names to values as given; None where a flag was not given.
    config : path, optional
        YAML file.

    Raises
    ------
    UsageError
        Names the flag, or the file and the path in it, what was expected and what was got.
    """
    given = {name: value for name, value in flags.items() if value is not None}
    file = {} if config is None else _read_mapping(config)
    for names in _EITHER:
        if names & given.keys():
            file = {key: value for key, value in file.items() if _field_name(key) not in names - given.keys()}
    merged: dict[str, Any] = {}
    labels: dict[str, str] = {}
    for key, value in file.items():
        name = _field_name(key)
        if name in merged:
            raise UsageError(f"{config}: {key}: expected each key once, got it twice")
        merged[name], labels[name] = value, f"{config}: {key}"
    for name, value in given.items():
        merged[name], labels[name] = value, flag_name(name)
    try:
        return kind.model_validate(merged)
    except ValidationError as error:
        details = first_fault(error)
        fields = list(kind.model_fields if len(details["loc"]) < 2 else PromptAt.model_fields)
        about = details["loc"][:1] or details.get("ctx", {}).get("names", ())
        place = ", ".join(labels.get(str(name)) or flag_name(str(name)) for name in about)
        raise usage_error(details, place, details["loc"][1:], fields) from None


def files_read(flags: Mapping[str, Any], config: str | os.PathLike[str] | None = None) -> dict[str, Path]:
    """Find the files that a run reads, by the names of the settings that name them.

    Parameters
    ----------
    flags, config
        As for `load_settings`, which has accepted them.
    """
    file = {} if config is None else _read_mapping(config)
    given = {_field_name(key): value for key, value in file.items()} | {"config": config}
    given |= {name: value for name, value in flags.items() if value is not None}
    names = ("input", "prompts", "config", "model", "checkpoint", "vae")
    paths = {name: Path(given[name]) for name in names if isinstance(given.get(name), str | os.PathLike)}
    return {name: path for name, path in paths.items() if path.is_file()}


def label(name: str, flags: Mapping[str, Any], config: str | os.PathLike[str] | None = None) -> str:
    """Name a setting as it was given: by its flag, or by its place in the file."""
    keys = [] if config is None or flags.get(name) is not None else _read_mapping(config)
    return next((f"{config}: {key}" for key in keys if _field_name(key) == name), flag_name(name))


def read_schedule(path: str | os.PathLike[str]) -> list[PromptAt]:
    """Read a prompt schedule, a YAML list of ``{at: seconds, prompt: text}`` in order of time.

    Raises
    ------
    UsageError
        Names the file and the path in it.
    """
    content = read_yaml(path)
    try:
        return TypeAdapter(Schedule).validate_python(content)
    except ValidationError as error:
        details = first_fault(error)
        # A list has no name in its file: "prompts.yaml: [2].at", but "prompts.yaml: expected a list".
        label = f"{path}: " if details["loc"] else str(path)
        raise usage_error(details, label, details["loc"], list(PromptAt.model_fields)) from None


def flag_name(name: str) -> str:
    """Name a field as on the command line: a flag, or an argument where the field has no flag."""
    return name.upper() if name in ("prompt", "input") else "--" + name.replace("_", "-")


def _read_mapping(path: str | os.PathLike[str]) -> dict[str, Any]:
    content = read_yaml(path)
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected a mapping of settings, got {shown(content)}")
    return {str(key): value for key, value in content.items()}


def _field_name(key: str) -> str:
    return key.replace("-", "_")
