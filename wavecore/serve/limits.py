"""Who may connect, and how much they may send."""

from __future__ import annotations

import hmac
import ipaddress
from collections.abc import Callable
from urllib.parse import urlsplit


class TokenBucket:
    """Allows `rate` things a second, and `burst` at once.

    Parameters
    ----------
    rate, burst : float
    clock : callable
        Seconds.
    """

    def __init__(self, rate: float, burst: float, clock: Callable[[], float]) -> None:
        self._rate, self._burst, self._clock = rate, burst, clock
        self._left, self._at = burst, clock()

    def take(self) -> bool:
        """Take one if there is one."""
        now = self._clock()
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine only."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class Gate:
    """Checks host, origin and token of a request.

    Parameters
    ----------
    host : str
        Address the server is bound to. On loopback only loopback names are answered, so that no page can
        reach the server under a name of its own (DNS rebinding).
    token : str or None
        What a client has to present.
    origin : str or None
        A further origin whose pages may connect.
    """

    def __init__(self, host: str, token: str | None, origin: str | None) -> None:
        self._local = is_loopback(host)
        self._token, self._origin = token, origin

    def knows_host(self, header: str | None) -> bool:
        """Check the Host header."""
        if not self._local:
            return True
        if header is None:
            return False
        try:
            return is_loopback(urlsplit(f"//{header}").hostname or "")
        except ValueError:
            return False

    def knows_origin(self, origin: str | None, host: str | None) -> bool:
        """Check the Origin header, which browsers send and other clients leave out: the server's own page."""
        if origin is None or origin == self._origin:
            return True
        try:
            return bool(host) and urlsplit(origin).netloc == host
        except ValueError:
            return False

    def knows_token(self, token: str | None) -> bool:
        """Compare a token in constant time; any will do where none is asked for."""
        if self._token is None:
            return True
        return token is not None and hmac.compare_digest(token.encode(), self._token.encode())
