"""Errors with one clear line: what was wrong, what was expected, what was got."""

from __future__ import annotations


class WavecoreError(Exception):
    """Base of every error that wavecore raises on purpose.

    The command line prints the message as one line and exits with `exit_code`.
    """

    exit_code = 1


class UsageError(WavecoreError, ValueError):
    """A wrong argument, flag or configuration value (exit code 2)."""

    exit_code = 2


class InputError(WavecoreError):
    """A file or other input that cannot be used (exit code 1)."""


class CheckpointError(InputError):
    """A checkpoint whose tensors do not fit the model: names the key, expected and got."""
