"""Output paths: checked before the work starts, written beside the target, renamed when complete."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wavecore.errors import InputError

_CAUSES = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file would grow past the allowed file size",
    errno.EACCES: "not writable (permission denied)",
    errno.EPERM: "not writable (operation not permitted)",
    errno.EROFS: "not writable (read-only file system)",
    errno.ENOENT: "its directory does not exist",
    errno.ENOTDIR: "its parent is not a directory",
    errno.EISDIR: "is a directory, expected a file path",
    errno.ENAMETOOLONG: "the name is too long",
}


def write_error(path: Path, error: OSError) -> InputError:
    """Say in one line why `path` could not be written."""
    cause = _CAUSES.get(error.errno or 0) or error.strerror or str(error)
    return InputError(f"{path}: cannot write: {cause}")


def check_output(path: str | os.PathLike[str], directory: bool = False) -> Path:
    """Check that an output can be created, before any work is done for it.

    Parameters
    ----------
    path : path
        An existing file will be replaced. A directory must be absent or empty.
    directory : bool
        True when the output is a directory of files.

    Raises
    ------
    InputError
        Names the path and the cause.
    """
    target = Path(path)
    try:
        if directory:
            if target.exists() and (not target.is_dir() or any(target.iterdir())):
                raise InputError(f"{target}: cannot write: expected a new or empty directory")
        elif target.is_dir():
            raise IsADirectoryError(errno.EISDIR, "")
        probe = pending_path(target)
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise write_error(target, error) from None
    except ValueError as error:  # a NUL in the path
        raise InputError(f"{str(target)!r}: cannot write: {error}") from None
    return target


def pending_path(target: Path) -> Path:
    """Name a hidden file beside `target`, on the same file system, so that a rename completes it at once."""
    return target.with_name(f".{target.name[:200]}.{secrets.token_hex(4)}.part")


@contextmanager
def complete_or_nothing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write a file to; it takes its final name at the end and is removed on any error."""
    target = check_output(path)
    pending = pending_path(target)
    try:
        yield pending
        os.replace(pending, target)
    except OSError as error:
        raise write_error(target, error) from None
    finally:
        pending.unlink(missing_ok=True)
