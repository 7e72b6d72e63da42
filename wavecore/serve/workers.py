"""Which of several servers behind one address a request belongs to.

What lives on one server (a session that waits for its viewer, a recording, a clip) has a key that begins
with the server's name: `NAME.SECRET`. A request about it carries the key in its path, or the name as the
query parameter `worker`, which also serves for `/metrics`. Whoever spreads requests has to look no further.
"""

from __future__ import annotations

import secrets
from urllib.parse import parse_qs

_OWNED = ("/v1/recordings/", "/v1/videos/")


def new_key(worker: str) -> str:
    """Make a key that cannot be guessed for something that lives on `worker`."""
    return f"{worker}.{secrets.token_urlsafe(16)}"


def worker_of(path: str, query: str = "") -> str | None:
    """Name of the server that a request is for; None when any will do.

    Parameters
    ----------
    path, query : str
        Of its URL.
    """
    named = parse_qs(query).get("worker")
    if named:
        return named[0]
    for prefix in _OWNED:
        if path.startswith(prefix):
            worker, dot, _ = path[len(prefix) :].partition(".")
            return worker if dot else None
    return None
