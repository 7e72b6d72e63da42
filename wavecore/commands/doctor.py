"""`wavecore doctor`."""

from __future__ import annotations

import importlib.metadata
import os
import platform
from pathlib import Path
from typing import Any

import click

from wavecore.commands.console import report
from wavecore.commands.options import json_option
from wavecore.errors import WavecoreError

# Processor features that decide which CPU kernels can run.
_FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512_bf16",
    "avx512_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
)
_ARM_FEATURES = ("asimd", "sve", "bf16", "i8mm")
_PACKAGES = (
    "numpy",
    "safetensors",
    "av",
    "pillow",
    "pydantic",
    "msgspec",
    "diffusers",
    "transformers",
    "nvtx",
    "cupy",
)


@click.command("doctor")
@json_option
def command(json_output: bool) -> None:
    """Show what this machine has, which kernels run on it, and why the others do not."""
    found = {
        "wavecore": _package("wavecore") or _own_version(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processor": _processor(),
        "torch": _torch(),
        "triton": _package("triton") or "not installed",
        "operations": _operations(),
        "media": _media(),
        "models": _models(),
        "packages": {name: _package(name) for name in _PACKAGES},
        "environment": {key: value for key, value in os.environ.items() if key.startswith("WAVECORE_")},
    }
    report(found, "\n".join(_lines(found, "")), json_output)


def _own_version() -> str:
    from wavecore import __version__

    return f"{__version__} (not installed, run from its source)"


def _package(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> dict[str, Any]:
    name, flags = platform.processor() or platform.machine(), set[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = (part.strip() for part in line.partition(":"))
            if key == "model name":
                name = value
            elif key in ("flags", "Features"):
                flags |= set(value.split())
    except OSError:  # not Linux
        pass
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    features = [feature for feature in (*_FEATURES, *_ARM_FEATURES) if feature in flags]
    return {"name": name, "machine": platform.machine(), "usable_cores": usable, "features": features}


def _torch() -> dict[str, Any]:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "version": torch.__version__,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "cuda": torch.version.cuda or "not in this build",
        "cuda_devices": devices,
    }


def _operations() -> dict[str, Any]:
    """For each device, the implementation that runs, and for each other one why it cannot."""
    import torch

    from wavecore import ops
    from wavecore.ops.backend import selected

    found: dict[str, Any] = {"selected": ops.backend()}
    for device in ["cpu"] + ["cuda"] * torch.cuda.is_available():
        try:
            runs = selected.of(torch.empty(0, device=device)).backend
        except WavecoreError as error:
            runs = f"none: {error}"
        if runs == "native":
            from wavecore.ops import native

            runs += (
                f" ({native.instruction_set()}, of {', '.join(native.INSTRUCTION_SETS)} on this processor;"
                f" matrix units: {native.matrix_units()})"
            )
        found[device] = {"runs": runs}
        for name in ops.BACKENDS:
            if name != "auto":
                found[device][name] = ops.unavailable(name, device) or "can run"
    return found


def _media() -> dict[str, Any]:
    try:
        import av
    except ImportError as error:
        return {"pyav": f"cannot be imported: {error}"}
    decoders = ("h264", "hevc", "vp9", "libvpx-vp9", "av1", "libdav1d")
    return {
        "pyav": av.__version__,
        "ffmpeg": av.ffmpeg_version_info,
        "h264_encoder": "libx264" if "libx264" in av.codecs_available else "missing: no video can be written",
        "decoders": [name for name in decoders if name in av.codecs_available],
    }


def _models() -> dict[str, str]:
    """The weights that the package holds."""
    import wavecore

    root = Path(wavecore.__file__).parent
    files = sorted(root.rglob("*.safetensors"))
    return {str(file.relative_to(root)): f"{file.stat().st_size / 2**20:.1f} MiB" for file in files} or {
        "sprites": "missing: the package holds no weights"
    }


def _lines(value: dict[str, Any], indent: str) -> list[str]:
    lines = []
    for key, item in value.items():
        name = key.replace("_", " ")
        if isinstance(item, dict) and item:
            lines += [f"{indent}{name}", *_lines(item, indent + "  ")]
        else:
            shown = ", ".join(map(str, item)) or "none" if isinstance(item, list | dict) else item
            lines.append(f"{indent}{name}: {'not installed' if shown is None else shown}")
    return lines
