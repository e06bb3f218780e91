"""Which hosts a client may send this host to, and which addresses these have."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.net.addresses import Address, is_private, is_public
from smg_trio.settings.hosts import DEFAULT_PORTS, HostRule

if TYPE_CHECKING:
    from smg_trio.net.urls import HttpUrl

_LOOKUPS_AT_ONCE: Final = 16

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""From name and port to addresses; raises OSError for names that have none."""


class HostNotAllowed(Exception):
    """A URL that is not one of those that the settings name; never says which address a name has."""


class HostNotFound(Exception):
    """A name without an address."""


@dataclass(frozen=True, slots=True)
class HostPolicy:
    """Which hosts.

    Attributes:
        any_host: all hosts with public addresses, not only those that `rules` name.
        rules: hosts, and ports beside 80 and 443.
        private: hosts of `rules` may have loopback and private addresses.
    """

    any_host: bool = False
    rules: tuple[HostRule, ...] = ()
    private: bool = False

    def check_url(self, url: HttpUrl) -> None:
        """Refuse hosts and ports that are not allowed. Raises HostNotAllowed."""
        named = [rule for rule in self.rules if rule.allows_host(url.host)]
        if not named and not self.any_host:
            raise HostNotAllowed("host not allowed")
        if not any(rule.allows_port(url.port) for rule in named) and not (self.any_host and url.port in DEFAULT_PORTS):
            raise HostNotAllowed(f"port {url.port} not allowed")

    def check_addresses(self, addresses: Sequence[Address]) -> None:
        """Refuse a host of which one address must not be connected to. Raises HostNotAllowed."""
        for address in addresses:
            if not is_public(address) and not (self.private and is_private(address)):
                raise HostNotAllowed("host not allowed")

    async def addresses_of(self, url: HttpUrl, resolve: Resolve) -> Sequence[Address]:
        """The addresses to connect to for an allowed URL, looked up once.

        Raises HostNotAllowed, HostNotFound.
        """
        if url.address is not None:
            addresses: Sequence[Address] = [url.address]
        else:
            try:
                addresses = await resolve(url.host, url.port)
            except (OSError, UnicodeError):
                addresses = []
        if not addresses:
            raise HostNotFound("the URL's host is not found")
        self.check_addresses(addresses)
        return addresses


class SystemResolver:
    """The system's resolver, in threads of its own: slow name servers must not hold those that others need."""

    def __init__(self) -> None:
        self._limiter = trio.CapacityLimiter(_LOOKUPS_AT_ONCE)

    async def __call__(self, host: str, port: int) -> list[Address]:
        """All addresses, the system's favourite first. A lookup that is cancelled keeps its thread until it ends."""
        found = await trio.to_thread.run_sync(_lookup, host, port, limiter=self._limiter, abandon_on_cancel=True)
        # Addresses with a scope (%eth0) are link-local: they stay in, to be refused.
        return list(dict.fromkeys(ip_address(text.partition("%")[0]) for text in found))


def _lookup(host: str, port: int) -> list[str]:
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)
    return [str(entry[4][0]) for entry in found]
