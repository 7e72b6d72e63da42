"""The `wavecore` command line.

Exit codes: 0 done, 1 run-time error (bad files and data included), 2 wrong usage, 130 interrupted. An error
is one line on standard error; with ``--json`` it is also an object on standard output.
"""

from __future__ import annotations

import difflib
import importlib
import json
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress

import click

from wavecore import __version__
from wavecore.errors import WavecoreError
from wavecore.interrupts import SIGNALS, Interrupt

_COMMANDS = {
    "generate": "Make a video from a prompt or a prompt schedule.",
    "restyle": "Restyle a video after a prompt, keeping its motion.",
    "serve": "Serve interactive streams to browsers and programs.",
    "eval": "Measure a sprites model: does the video show what the prompt says?",
    "train": "Train the sprites model.",
    "convert": "Convert a checkpoint between naming schemes.",
    "simulate": "Run the speculative controller in virtual time: latency, cost, laws.",
    "replay": "Run a recorded speculative session again and compare its frames.",
    "plan": "Predict what placements do on some devices, and choose the best.",
    "trace": "Turn an event log into a timeline for Perfetto.",
    "doctor": "Show what this machine has and which kernels run on it.",
}


_NO_MEMORY = "out of memory: a smaller size, or fewer devices or decoders, need less"


class Commands(click.Group):
    """Commands by name, imported at first use; an unknown one suggests the nearest."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names, in the order of the help."""
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        """Import one command."""
        if name not in _COMMANDS:
            return None
        command: click.Command = importlib.import_module(f"wavecore.commands.{name}").command
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Look up the command that the arguments name."""
        if args and args[0] not in _COMMANDS and not args[0].startswith("-"):
            close = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(_COMMANDS)}"
            raise click.UsageError(f"no command {args[0]!r}, {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help without importing the commands."""
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": lambda token: token.replace("_", "-"),  # --num_frames is --num-frames
        "max_content_width": 110,
    },
)
@click.version_option(__version__, prog_name="wavecore", message="%(prog)s %(version)s")
def cli() -> None:
    """Real-time, interactive video diffusion."""


def run(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code.

    Parameters
    ----------
    arguments : sequence of str
        Without the program's name.
    """
    try:
        arguments = list(arguments) or ["--help"]
        return cli.main(arguments, prog_name="wavecore", standalone_mode=False) or 0
    except click.UsageError as error:
        message, code = _usage_message(error), 2
    except click.ClickException as error:
        message, code = error.format_message(), error.exit_code
    except (click.Abort, KeyboardInterrupt):
        message, code = "interrupted", 130
    except WavecoreError as error:
        message, code = str(error), error.exit_code
    except MemoryError:
        message, code = _NO_MEMORY, 1
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        message, code = f"{place}{error.strerror or error}", 1
    except RuntimeError as error:
        if not _is_out_of_memory(error):
            raise
        message, code = _NO_MEMORY, 1
    message = " ".join(message.split())
    print(f"wavecore: {message}", file=sys.stderr)
    if "--json" in arguments and code != 130:  # an interrupted command has reported what it made
        with suppress(OSError):  # standard output may be what cannot be written
            print(json.dumps({"error": message, "exit_code": code}, ensure_ascii=False), flush=True)
    return code


def _is_out_of_memory(error: RuntimeError) -> bool:
    """Whether PyTorch could not have memory: a type of its own on a GPU, and a message on the CPU."""
    return type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in str(error)


def _usage_message(error: click.UsageError) -> str:
    """Name the command, and the flag nearest to an unknown one."""
    message, context = error.format_message(), error.ctx
    if context is not None and isinstance(error, click.NoSuchOption):
        flags = [flag for parameter in context.command.get_params(context) for flag in parameter.opts]
        close = difflib.get_close_matches(error.option_name.replace("_", "-"), flags, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"see wavecore {context.info_name} --help"
        message = f"no flag {error.option_name}, {hint}"
    if context is not None and context.command is not cli:
        message = f"{context.info_name}: {message}"
    return message


def main() -> None:
    """Run the command line of this process."""
    # A stop from outside leaves playable files too, and so does the end of a terminal. What is ignored stays
    # ignored: the end of the terminal under nohup, Ctrl-C in a background job.
    handled = [number for number in SIGNALS if signal.getsignal(number) != signal.SIG_IGN]
    interrupt = Interrupt()
    for number in handled:
        signal.signal(number, interrupt)
    code = run(sys.argv[1:])
    for number in handled:  # the command is over: its exit code stands
        signal.signal(number, signal.SIG_IGN)
    sys.exit(code)
