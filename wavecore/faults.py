"""What is wrong with settings and their files, in one line: where, what was expected and what was got."""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError
from pydantic_core import ErrorDetails, PydanticCustomError

from wavecore.errors import UsageError


def read_yaml(path: str | os.PathLike[str]) -> Any:
    """Read a YAML file.

    Raises
    ------
    UsageError
        Names the file, and the line of what is not YAML.
    """
    try:
        return yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot read: {error.strerror}") from None
    except yaml.MarkedYAMLError as error:
        line = f"line {error.problem_mark.line + 1}: " if error.problem_mark else ""
        raise UsageError(f"{path}: {line}not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None


def first_fault(error: ValidationError) -> ErrorDetails:
    """Choose the error to report: an unknown key first, since it explains the one that is missing."""
    return min(error.errors(), key=lambda details: details["type"] != "extra_forbidden")


def usage_error(
    details: ErrorDetails, label: str, inner: tuple[int | str, ...], fields: list[str]
) -> UsageError:
    """Say one validation error in one line; `inner` is the way from the label to the value."""
    cause = details.get("ctx", {}).get("error")
    if isinstance(cause, UsageError):  # from another file, which it names
        return cause
    steps = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in inner)
    path = label + steps
    text = _fault_text(details, fields)
    return UsageError(f"{path}: {text}" if path else text)


_EXPECTED = {
    "int_type": "an integer",
    "int_parsing": "an integer",
    "int_parsing_size": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "float_parsing": "a number",
    "finite_number": "a finite number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "a number below {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "{expected}",
    "string_type": "text",
    "path_type": "a path",
    "list_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
}


def _fault_text(details: ErrorDetails, fields: list[str]) -> str:
    kind = details["type"]
    if kind == "fault":
        return details["msg"]
    if kind == "missing":
        return "expected a value, got none"
    if kind == "extra_forbidden":
        close = difflib.get_close_matches(str(details["loc"][-1]).replace("-", "_"), fields, n=1)
        hint = f"did you mean {close[0]}?" if close else f"expected one of {', '.join(fields)}"
        return f"unknown key, {hint}"
    expected = _EXPECTED.get(kind)
    if expected is None:
        return f"{details['msg']}, got {shown(details['input'])}"
    return f"expected {expected.format(**details.get('ctx', {}))}, got {shown(details['input'])}"


def fault(text: str, *names: str) -> PydanticCustomError:
    """An error for validators to raise; `names` are the fields it is about where the whole is checked."""
    # The text is a parameter, since braces in a message are taken for a template.
    return PydanticCustomError("fault", "{text}", {"text": text, "names": names})


def shown(value: object) -> str:
    """A value as errors show it: no longer than a line has room for."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
