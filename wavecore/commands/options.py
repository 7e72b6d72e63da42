"""Flags made from the settings classes, so that flags and configuration files have one source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypeVar, get_args, get_origin

import click
from click.core import ParameterSource
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from wavecore.config import flag_name, label
from wavecore.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

# Arguments of the library that a flag sets under another name.
_FLAGS = {"chunk_frames": "chunk_latents", "span": "noise_span", "target": "underrun_rate"}


class Command(click.Command):
    """A command whose errors name flags: an argument of the library is named as it was given here."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except UsageError as error:
            named, colon, said = str(error).partition(": ")
            names = [_FLAGS.get(name, name) for name in named.split(", ")]
            if not colon or not set(names) <= ctx.params.keys():
                raise
            labels = [label(name, ctx.params, ctx.params.get("config")) for name in names]
            raise type(error)(f"{', '.join(labels)}: {said}") from None


def refuse_others(why: str, *names: str) -> None:
    """Refuse flags that were typed and have no effect; those of `names` have one.

    Raises
    ------
    UsageError
        Names the flag, and `why` it has none.
    """
    context = click.get_current_context()
    for parameter in context.command.params:
        name = str(parameter.name)
        typed = context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        if typed and isinstance(parameter, click.Option) and name not in (*names, "json_output"):
            raise UsageError(f"{parameter.opts[0]}: expected none {why}")


json_option = click.option(
    "--json", "json_output", is_flag=True, help="Print one JSON object; no progress bar."
)
config_option = click.option("--config", metavar="FILE", help="YAML file of settings; flags go before it.")


def settings_options(kind: type[BaseModel]) -> Callable[[Function], Function]:
    """Add a flag for every field of `kind` that is not an argument.

    Values reach the command as text, or None where a flag is not given: `wavecore.config.load_settings`
    checks them together with the file.
    """

    def add(function: Function) -> Function:
        for name, field in reversed(kind.model_fields.items()):
            flag = flag_name(name)
            if flag.startswith("--") and field.annotation is bool:
                function = click.option(flag, name, is_flag=True, default=None, help=_help(field))(function)
            elif flag.startswith("--"):
                function = click.option(flag, name, metavar=_metavar(name, field), help=_help(field))(
                    function
                )
        return function

    return add


def _metavar(name: str, field: FieldInfo) -> str:
    kind = field.annotation
    if get_origin(kind) is not Literal:  # an optional choice: the union of it and None
        kind = next((part for part in get_args(kind) if get_origin(part) is Literal), None)
    if kind is not None:
        return "|".join(get_args(kind))
    if name == "size":
        return "WIDTHxHEIGHT"
    return "FILE" if name == "prompts" else "VALUE"


def _help(field: FieldInfo) -> str:
    text = field.description or ""
    text = text[:1].upper() + text[1:]
    shown = field.default is not None and field.annotation is not bool
    return text + (f" [{field.default}]" if shown else ".")
