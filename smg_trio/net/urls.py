"""http and https URLs of clients, read in one way only. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote, urljoin, urlsplit

import idna

from smg_trio.net.addresses import Address, address_in

SHOWN_CHARS: Final = 64
_MAX_CHARS: Final = 8192
_MAX_HOST_CHARS: Final = 253
_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY: Final = re.compile(r"(?P<host>\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>[0-9]{0,5}))?")
_LABEL: Final = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)")
_FORBIDDEN: Final = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")
_KEPT: Final = "!#$%&'()*+,/:;=?@[]~"
"""What `quote` leaves alone beside letters, digits and ``_.-~``; escapes stay what they are."""


class InvalidUrl(ValueError):
    """A URL that is not read; says why, for its client."""


@dataclass(frozen=True, slots=True)
class HttpUrl:
    """An http or https URL.

    Attributes:
        scheme: ``http`` or ``https``.
        host: name in lower case and ASCII, without a dot at its end; an address as `ipaddress` writes it.
        port: from 1 to 65535.
        target: path and query, in ASCII, beginning with a slash.
        address: what the host says if it is no name.
    """

    scheme: str
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def authority(self) -> str:
        """What the Host header says: the port only where it is not the scheme's."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == _PORTS[self.scheme] else f"{host}:{self.port}"

    def joined(self, location: str) -> HttpUrl:
        """What a Location header of this URL's answer means. Raises InvalidUrl."""
        if _FORBIDDEN.search(location):
            raise InvalidUrl("the URL redirects to what is not a URL")
        try:
            joined = urljoin(f"{self.scheme}://{self.authority}{self.target}", location)
        except ValueError:
            raise InvalidUrl("the URL redirects to what is not a URL") from None
        return parse_url(joined)


def shown(url: str) -> str:
    """A client's URL for an error's text: without user, query and fragment, cut to `SHOWN_CHARS`."""
    scheme, separator, rest = url.partition("://")
    rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    authority, slash, path = rest.partition("/")
    text = f"{scheme}{separator}{authority.rpartition('@')[2]}{slash}{path}"
    text = "".join(char if char.isprintable() else "?" for char in text[: SHOWN_CHARS + 1])
    return text if len(text) <= SHOWN_CHARS else f"{text[: SHOWN_CHARS - 1]}…"


def parse_url(text: str, wanted: str = "an http or https URL") -> HttpUrl:
    """Read a URL; `wanted`: what errors say to use instead of another scheme.

    Raises InvalidUrl for what is not http or https, or not clear.
    """
    text = text.strip()
    scheme = text[:9].partition(":")[0].lower()
    if scheme not in _PORTS:
        raise InvalidUrl(_scheme_problem(text, wanted))
    if len(text) > _MAX_CHARS:
        raise InvalidUrl(f"the URL is longer than {_MAX_CHARS} characters")
    if _FORBIDDEN.search(text):
        raise InvalidUrl("the URL holds a backslash or a control character")
    try:
        parts = urlsplit(text)
    except ValueError:
        raise InvalidUrl("the URL is not valid") from None
    if "@" in parts.netloc:
        raise InvalidUrl("the URL must not hold a user name or password")
    found = _AUTHORITY.fullmatch(parts.netloc)
    port = int(found["port"] or _PORTS[scheme]) if found else 0
    if not found or not found["host"] or not 0 < port <= 65535:
        raise InvalidUrl("the URL has no valid host and port")
    host, address = _host(found["host"])
    target = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    return HttpUrl(scheme, host, port, target if target.startswith("/") else f"/{target}", address)


def _scheme_problem(text: str, wanted: str) -> str:
    if not text:
        return "the URL is empty"
    return (
        f"unsupported URL scheme in {shown(text)!r}: use {wanted}" if ":" in text[:32] else f"not a URL: use {wanted}"
    )


def _host(text: str) -> tuple[str, Address | None]:
    if len(text) > _MAX_HOST_CHARS:
        raise InvalidUrl("the URL's host is not valid")
    try:
        # Some forms of digits and dots are plain ones only after IDNA's mapping.
        name = text.lower() if text.isascii() else idna.encode(text, uts46=True).decode("ascii")
        address = address_in(name)
    except (ValueError, idna.IDNAError):
        raise InvalidUrl("the URL's host is not valid") from None
    if address is not None:
        return str(address), address
    name = name.removesuffix(".")
    if len(name) > _MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in name.split(".")):
        raise InvalidUrl("the URL's host is not valid")
    return name, None
