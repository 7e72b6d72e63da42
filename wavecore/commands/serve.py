"""`wavecore serve`."""

from __future__ import annotations

import importlib.util
import json
import logging
from typing import TYPE_CHECKING, Any

import click

from wavecore.commands.options import Command, config_option, json_option, settings_options
from wavecore.config import load_settings
from wavecore.errors import UsageError
from wavecore.serve.settings import ServeSettings

if TYPE_CHECKING:
    from wavecore.serve.app import Server

_NEEDED = ("fastapi", "prometheus_client", "uvicorn", "websockets")


@click.command("serve", cls=Command)
@settings_options(ServeSettings)
@click.option("-v", "--verbose", is_flag=True, help="Log sessions and speed; never prompts.")
@config_option
@json_option
def command(config: str | None, json_output: bool, verbose: bool, **flags: Any) -> None:
    """Serve interactive streams: a page for the browser, a WebSocket protocol, and HTTP."""
    settings = load_settings(ServeSettings, flags, config)
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(f"serve: {', '.join(missing)} not installed: pip install 'wavecore[serve]'")
    from wavecore.serve.run import serve

    logging.basicConfig(level=logging.INFO if verbose else logging.WARNING, format="%(name)s: %(message)s")

    def announce(address: str) -> None:
        text = json.dumps({"address": address}) if json_output else f"wavecore: {address}"
        click.echo(text)

    if settings.ray:
        if importlib.util.find_spec("ray") is None:
            raise UsageError("--ray: ray not installed: pip install 'wavecore[ray]'")
        from wavecore.serve.cluster import serve_cluster

        serve_cluster(settings, build, announce)
    else:
        serve(settings, build, announce)


def build(settings: ServeSettings) -> Server:
    """Make the application; imported when the port is listened to already."""
    from wavecore.serve.app import Server
    from wavecore.serve.engine import PipelineEngine

    return Server(settings, PipelineEngine(settings))
