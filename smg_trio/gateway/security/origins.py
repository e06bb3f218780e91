"""Which web pages may use the gateway: checks of the ``Origin`` and ``Host`` headers. Pure.

A browser lets any page open WebSockets to and send requests at any server that it can reach, loopback ones included; it
only keeps the answers from the page. It names the page in ``Origin``, with every WebSocket handshake and every method
but GET and HEAD (Fetch Standard, 3.2). Programs send no ``Origin``, so nothing changes for them.

With DNS rebinding the name of a page comes to mean 127.0.0.1: ``Origin`` and ``Host`` agree then, and the page may
even read answers. Only the name itself tells, so without keys a gateway on a loopback address answers to loopback names
only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from functools import lru_cache
from ipaddress import ip_address
from typing import Final, NamedTuple

from smg_trio.core.errors import ClientFault

ANY: Final = "*"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_AUTHORITY: Final = r"(?P<host>\[[0-9a-f:.]+\]|[^\s/:?#@\[\]]+)(?::(?P<port>[0-9]{1,5}))?"
_HOST: Final = re.compile(_AUTHORITY, re.IGNORECASE)
_ORIGIN: Final = re.compile(rf"(?P<scheme>https?)://{_AUTHORITY}/?", re.IGNORECASE)
_SHOWN_CHARS: Final = 100


class OriginNotAllowed(ClientFault):
    """The request comes from a web page of another origin, which `--cors-allowed-origins` does not name."""

    code = "origin_not_allowed"
    status = 403


class HostNotAllowed(ClientFault):
    """Without keys on a loopback address: `Host` is neither a loopback name nor in `--allowed-hosts`."""

    code = "host_not_allowed"
    status = 403


class _Authority(NamedTuple):
    """A name in lower case, or an address in its shortest form, and a port."""

    host: str
    port: int | None


def normal_origin(text: str) -> str:
    """An origin as it is compared: scheme and host in lower case, the port always there.

    What is no ``http`` or ``https`` origin (``null``, ``app://name``) is compared as it is, in lower case.
    """
    found = _ORIGIN.fullmatch(text.strip())
    if found is None:
        return text.strip().lower()
    scheme = found["scheme"].lower()
    host, port = _authority(found)
    return f"{scheme}://{host}:{_DEFAULT_PORTS[scheme] if port is None else port}"


def _authority(found: re.Match[str]) -> _Authority:
    host = found["host"].lower().rstrip(".")
    if host.startswith("["):
        with suppress(ValueError):  # then it is compared as it is
            host = f"[{ip_address(host[1:-1]).compressed}]"
    return _Authority(host, None if found["port"] is None else int(found["port"]))


def is_own_origin(origin: str, host: str, *, tls: bool) -> bool:
    """Whether a page of `origin` was served by whom the request's ``Host`` names.

    Args:
        origin: the header, as the client sent it.
        host: the header; without a port, the scheme's own is meant.
        tls: whether the gateway speaks TLS itself. If not, a proxy in front may, so the scheme says nothing.
    """
    page, own = _ORIGIN.fullmatch(origin), _HOST.fullmatch(host)
    if page is None or own is None:
        return False
    scheme = page["scheme"].lower()
    if tls and scheme != "https":
        return False
    default = _DEFAULT_PORTS[scheme]
    (page_host, page_port), (own_host, own_port) = _authority(page), _authority(own)
    return page_host == own_host and (page_port or default) == (own_port or default)


@lru_cache(maxsize=256)
def host_name(host: str) -> str | None:
    """The name or address in a ``Host`` header, without its port; None if it is neither."""
    found = _HOST.fullmatch(host)
    return None if found is None else _authority(found).host


@lru_cache(maxsize=256)
def is_loopback_host(host: str) -> bool:
    """Whether a ``Host`` header names this machine by a name that no DNS server can give away."""
    name = host_name(host)
    if name is None:
        return False
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761: browsers do not ask DNS for it
        return True
    try:
        address = ip_address(name.strip("[]"))
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return address.is_loopback or (mapped is not None and mapped.is_loopback)


class OriginPolicy:
    """What one listener holds web pages to.

    Attributes:
        allowed: origins that may send and read, beside the listener's own; normal forms, or `ANY`.
    """

    __slots__ = ("_hosts", "_tls", "allowed")

    def __init__(self, origins: Collection[str] = (), hosts: Collection[str] = (), *, tls: bool = False) -> None:
        self.allowed = frozenset(ANY if one == ANY else normal_origin(one) for one in origins)
        self._hosts = frozenset(ANY if one == ANY else host_name(one) for one in hosts)
        self._tls = tls

    def check(self, method: str, headers: Mapping[str, str], *, loopback_only: bool = False) -> None:
        """Refuse a web page that may not send this request.

        Args:
            method: ``WEBSOCKET`` for a WebSocket handshake.
            headers: by lower-case name.
            loopback_only: ``Host`` must be a loopback name or one of the allowed hosts.

        Raises:
            OriginNotAllowed, HostNotAllowed.
        """
        host = headers.get("host")
        if loopback_only and host is not None and not is_loopback_host(host):
            self._check_host(host)
        origin = headers.get("origin")
        if origin is not None and method not in _SAFE_METHODS:
            self._check_origin(origin, host or "")

    def _check_host(self, host: str) -> None:
        if ANY not in self._hosts and host_name(host) not in self._hosts:
            raise HostNotAllowed(
                f"The Host header names {_shown(host)}: without API keys, a gateway on a loopback address answers to "
                "localhost and loopback addresses only. Name further hosts with --allowed-hosts, or set API keys."
            )

    def _check_origin(self, origin: str, host: str) -> None:
        if ANY in self.allowed or is_own_origin(origin, host, tls=self._tls) or normal_origin(origin) in self.allowed:
            return
        raise OriginNotAllowed(
            f"The Origin header names {_shown(origin)}, a web page of another origin than this gateway's. Name origins "
            "that may use it with --cors-allowed-origins; a proxy in front must pass the Host header on."
        )


def _shown(value: str) -> str:
    return repr(value if len(value) <= _SHOWN_CHARS else f"{value[:_SHOWN_CHARS]}…")
