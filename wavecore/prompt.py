"""Which texts are prompts: any that is not blank, of any script and length."""

from __future__ import annotations

from wavecore.errors import UsageError


def prompt_fault(text: object) -> str | None:
    """Say what is wrong with a prompt ("expected ..., got ..."), or return None."""
    if not isinstance(text, str):
        return f"expected text, got {type(text).__name__}"
    if "\0" in text:
        return f"expected text without NUL, got one at character {text.index(chr(0))}"
    if not text.strip():
        return "expected text that is not blank, got " + (f"{len(text)} blank characters" if text else "none")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # bytes of the command line that are not UTF-8 become lone surrogates
        return f"expected valid UTF-8, got an invalid byte at character {error.start}"
    return None


def check_prompt(text: object, name: str = "prompt") -> str:
    """Return the prompt unchanged.

    Raises
    ------
    UsageError
        It is not text, blank, holds NUL, or is not valid UTF-8; the message begins with `name`.
    """
    fault = prompt_fault(text)
    if fault is not None:
        raise UsageError(f"{name}: {fault}")
    return str(text)
