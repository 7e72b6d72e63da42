"""`wavecore convert`."""

from __future__ import annotations

import click

from wavecore.commands.console import report
from wavecore.commands.options import json_option
from wavecore.errors import UsageError

_SCHEMES = ("original", "diffusers")


@click.command("convert")
@click.argument("source")
@click.option(
    "--output-path",
    metavar="PATH",
    required=True,
    help="A .safetensors file, or a folder with its config.json.",
)
@click.option("--to", metavar="|".join(_SCHEMES), required=True, help="Names of the tensors in the output.")
@json_option
def command(source: str, output_path: str, to: str, json_output: bool) -> None:
    """Convert the Wan transformer, VAE or TAEHV checkpoint SOURCE to another naming scheme.

    SOURCE is a file, an index of shards or a folder, under original names, those of Self-Forcing and
    StreamDiffusionV2, or those of diffusers. It is checked as strictly as for use.
    """
    if to not in _SCHEMES:
        raise UsageError(f"--to: expected {' or '.join(_SCHEMES)}, got {to!r}")
    from wavecore.models.checkpoint import convert_checkpoint

    files = [str(path) for path in convert_checkpoint(source, output_path, to)]  # type: ignore[arg-type]
    report({"output_path": output_path, "files": files, "to": to}, "\n".join(files), json_output)
