"""Where a worker behind HTTP is reached: what its URL says. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class HttpAddress:
    """A server, and the path its API begins at.

    Attributes:
        host: a name or an IP address, without brackets.
        base_path: put before every path, without a slash at its end; often empty.
    """

    scheme: str
    host: str
    port: int
    base_path: str = ""

    @property
    def tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.scheme == "https"

    @property
    def authority(self) -> str:
        """The value of a Host header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def is_http_url(url: str) -> bool:
    """Whether the URL is of a worker behind HTTP."""
    return url.startswith(("http://", "https://"))


def parse_http_url(url: str) -> HttpAddress:
    """The address of an ``http://`` or ``https://`` URL. Raises ValueError, which says what is wrong with it."""
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError("has characters that a URL cannot have")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL of the form http://host:port") from None
    if parts.scheme not in _DEFAULT_PORTS:
        raise ValueError("must start with http:// or https://")
    if not parts.hostname:
        raise ValueError("names no host; write it as http://host:port")
    if parts.username is not None or parts.password is not None:
        raise ValueError("must not hold a user or password; give the worker's key as api_key")
    if "?" in url or "#" in url:
        raise ValueError("must have no query or fragment")
    if port == 0:
        raise ValueError("has port 0, which nothing listens on")
    return HttpAddress(
        parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port, parts.path.rstrip("/")
    )
