"""Files that a request names by URL: which ones are fetched, from where, and how long that may take.

Off unless the operator says otherwise. Where it is on, each URL and each redirect is read in one way only (`urls`),
must be allowed by the settings, and its name is resolved once: all its addresses must be ones that a client may send
this host to (`addresses`), and the connection goes to these addresses.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.media.addresses import Address, is_private, is_public
from smg_trio.media.errors import InvalidMedia, MediaNotAllowed, MediaTimeout
from smg_trio.media.urls import MediaUrl, parse_url
from smg_trio.settings.media import DEFAULT_PORTS, HostRule, host_rules

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource
    from smg_trio.settings.settings import Settings

TOTAL_S: Final = 15.0
"""How long one file may take, redirects, lookups and waiting for its turn included."""
MAX_REDIRECTS: Final = 3
_AT_ONCE: Final = 128
_LOOKUPS_AT_ONCE: Final = 16

Resolve = Callable[[str, int], Awaitable[Sequence[Address]]]
"""From name and port to addresses; raises OSError for names that have none."""


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Which URLs are fetched.

    Attributes:
        enabled: any at all.
        any_host: those of all hosts with public addresses, not only those that `rules` name.
        rules: hosts, and ports beside 80 and 443.
        private: hosts of `rules` may have loopback and private addresses.
    """

    enabled: bool = False
    any_host: bool = False
    rules: tuple[HostRule, ...] = ()
    private: bool = False

    @classmethod
    def of(cls, settings: Settings) -> FetchPolicy:
        """What the settings say."""
        return cls(
            enabled=settings.mm_fetch != "off",
            any_host=settings.mm_fetch == "public",
            rules=host_rules(settings.mm_fetch_allow),
            private=settings.mm_fetch_private and settings.mm_fetch == "allowlist",
        )

    def check_url(self, url: MediaUrl, where: str) -> None:
        """Refuse hosts and ports that are not allowed. Raises MediaNotAllowed."""
        named = [rule for rule in self.rules if rule.allows_host(url.host)]
        if not named and not self.any_host:
            raise MediaNotAllowed(where, "host not allowed")
        if not any(rule.allows_port(url.port) for rule in named) and not (self.any_host and url.port in DEFAULT_PORTS):
            raise MediaNotAllowed(where, f"port {url.port} not allowed")

    def check_addresses(self, addresses: Sequence[Address], where: str) -> None:
        """Refuse a host of which one address must not be connected to. Raises MediaNotAllowed."""
        for address in addresses:
            if not is_public(address) and not (self.private and is_private(address)):
                raise MediaNotAllowed(where, "host not allowed")


class MediaFetcher:
    """Fetches files. Holds no connections and no tasks.

    Args:
        policy: which URLs.
        limit: largest file in bytes.
        resolve: from names to addresses, by default the system's resolver.
        context: whom to trust with https, by default `http_client.client_context`.
    """

    def __init__(
        self,
        policy: FetchPolicy,
        limit: int,
        *,
        resolve: Resolve | None = None,
        context: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._limit = limit
        self._resolve = resolve or SystemResolver()
        self._context = context
        self._turns = trio.CapacityLimiter(_AT_ONCE)

    async def fetch(self, source: MediaSource, take: Callable[[int], Awaitable[None]]) -> bytes:
        """The file that a source's URL names; `take` is awaited before so many bytes more are kept.

        Raises:
            InvalidMedia: no http or https URL, or an answer of status 4xx.
            MediaNotAllowed: the URL, or where it leads, is not fetched from.
            MediaTooLarge: more bytes than the limit.
            MediaUnavailable, MediaTimeout: the server failed or took too long.
            UnsupportedFeature: the extra ``smg-trio[images]`` is missing.
        """
        url = parse_url(source.location, source.where)
        if not self._policy.enabled:
            problem = "URLs are not fetched (--mm-fetch is off): send the data in a data: URL"
            raise MediaNotAllowed(source.where, problem)
        with trio.move_on_after(TOTAL_S):
            async with self._turns:
                return await self._follow(url, source.where, take)
        raise MediaTimeout(source.where, f"fetching the URL took more than {TOTAL_S:g} s")

    async def _follow(self, url: MediaUrl, where: str, take: Callable[[int], Awaitable[None]]) -> bytes:
        try:
            from smg_trio.media import http_client
        except ImportError:
            problem = "fetching URLs needs an extra that is not installed: pip install 'smg-trio[images]'"
            raise UnsupportedFeature(f"{where}: {problem}", param=where) from None
        for _ in range(MAX_REDIRECTS + 1):
            self._policy.check_url(url, where)
            addresses = await self._addresses(url, where)
            context = await self._tls(http_client.client_context) if url.scheme == "https" else None
            answer = await http_client.get(url, addresses, where, limit=self._limit, context=context, take=take)
            if answer.location is None:
                return answer.body
            url = url.joined(answer.location, where)
        raise InvalidMedia(where, f"the URL redirects more than {MAX_REDIRECTS} times")

    async def _addresses(self, url: MediaUrl, where: str) -> Sequence[Address]:
        if url.address is not None:
            addresses: Sequence[Address] = [url.address]
        else:
            try:
                addresses = await self._resolve(url.host, url.port)
            except (OSError, UnicodeError):
                addresses = []
        if not addresses:
            raise InvalidMedia(where, "the URL's host is not found")
        self._policy.check_addresses(addresses, where)
        return addresses

    async def _tls(self, make: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        if self._context is None:
            self._context = await trio.to_thread.run_sync(make)
        return self._context


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
