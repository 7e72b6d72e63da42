"""Whether the memory of the machine is enough for something, asked before it is taken.

A program that takes more than there is gets no error: the kernel ends it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from wavecore.errors import UsageError

_GIB = 2**30
_ROOT = Path("/")
# Limit, use and the cache within it of a control group, by version.
_FILES = {
    2: ("memory.max", "memory.current", "file"),
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "cache"),
}


def check_memory(name: str, need: int, what: str) -> None:
    """Refuse what cannot fit.

    Parameters
    ----------
    name : str
        Of the argument.
    need : int
        Bytes that it takes at least, so that nothing is refused for which there is enough.
    what : str
        What was got, for the message.

    Raises
    ------
    UsageError
        The machine has less left, or the limits of its control groups leave less.
    """
    left = available_bytes()
    if left is not None and need > left:
        raise UsageError(
            f"{name}: expected what {left / _GIB:.1f} GiB of memory are enough for, got {what}, "
            f"which needs at least {need / _GIB:.1f} GiB"
        )


def available_bytes(root: Path = _ROOT) -> int | None:
    """Bytes that this process can still take, swap included; None where the system does not say.

    Parameters
    ----------
    root : Path
        Where `proc` and `sys` are (for tests).
    """
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
        kibibytes = {line.split(":")[0]: int(line.split()[1]) for line in lines}
        left = 1024 * (kibibytes["MemAvailable"] + kibibytes["SwapFree"])
    except (OSError, KeyError):
        return None
    return max(0, min([left, *_left_to_groups(root)]))


def _left_to_groups(root: Path) -> Iterator[int]:
    """What the limits of the control groups of this process leave; in a container they lie at the top."""
    try:
        groups = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in groups:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / ("memory" if controllers else "")
        limit, use, cache = _FILES[1 if controllers else 2]
        group = top / path.lstrip("/")
        for folder in (group, *group.parents):
            try:
                most, used = (int((folder / file).read_text()) for file in (limit, use))
                stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
                yield most - used + int(stat[cache])
            except (OSError, ValueError, KeyError):  # no such group here, or no limit: "max"
                pass
            if folder == top:
                break
