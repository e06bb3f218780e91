"""Files that a request names by URL: which ones are fetched, from where, and how long that may take.

Off unless the operator says otherwise. Where it is on, each URL and each redirect is read in one way only (`net.urls`),
must be allowed by the settings, and its name is resolved once: all its addresses must be ones that a client may send
this host to (`net.addresses`), and the connection goes to these addresses.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from smg_trio.core.errors import UnsupportedFeature
from smg_trio.media.errors import InvalidMedia, MediaNotAllowed, MediaTimeout
from smg_trio.net.connecting import client_context
from smg_trio.net.hosts import HostNotAllowed, HostNotFound, HostPolicy, Resolve, SystemResolver
from smg_trio.net.urls import HttpUrl, InvalidUrl, parse_url
from smg_trio.settings.media import host_rules

if TYPE_CHECKING:
    from smg_trio.core.media import MediaSource
    from smg_trio.settings.settings import Settings

TOTAL_S: Final = 15.0
"""How long one file may take, redirects, lookups and waiting for its turn included."""
MAX_REDIRECTS: Final = 3
_AT_ONCE: Final = 128
_NONE: Final = HostPolicy()


@dataclass(frozen=True, slots=True)
class FetchPolicy:
    """Which URLs are fetched: of these hosts, if any at all."""

    enabled: bool = False
    hosts: HostPolicy = _NONE

    @classmethod
    def of(cls, settings: Settings) -> FetchPolicy:
        """What the settings say."""
        hosts = HostPolicy(
            any_host=settings.mm_fetch == "public",
            rules=host_rules(settings.mm_fetch_allow),
            private=settings.mm_fetch_private and settings.mm_fetch == "allowlist",
        )
        return cls(settings.mm_fetch != "off", hosts)


class MediaFetcher:
    """Fetches files. Holds no connections and no tasks.

    Args:
        policy: which URLs.
        limit: largest file in bytes.
        resolve: from names to addresses, by default the system's resolver.
        context: whom to trust with https, by default `client_context`.
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
        try:
            url = parse_url(source.location, "an http, https or data: URL")
        except InvalidUrl as error:
            raise InvalidMedia(source.where, str(error)) from None
        if not self._policy.enabled:
            problem = "URLs are not fetched (--mm-fetch is off): send the data in a data: URL"
            raise MediaNotAllowed(source.where, problem)
        with trio.move_on_after(TOTAL_S):
            async with self._turns:
                return await self._follow(url, source.where, take)
        raise MediaTimeout(source.where, f"fetching the URL took more than {TOTAL_S:g} s")

    async def _follow(self, url: HttpUrl, where: str, take: Callable[[int], Awaitable[None]]) -> bytes:
        try:
            from smg_trio.media import http_client
        except ImportError:
            problem = "fetching URLs needs an extra that is not installed: pip install 'smg-trio[images]'"
            raise UnsupportedFeature(f"{where}: {problem}", param=where) from None
        hosts = self._policy.hosts
        for _ in range(MAX_REDIRECTS + 1):
            try:
                hosts.check_url(url)
                addresses = await hosts.addresses_of(url, self._resolve)
            except HostNotAllowed as error:
                raise MediaNotAllowed(where, str(error)) from None
            except HostNotFound as error:
                raise InvalidMedia(where, str(error)) from None
            context = await self._tls() if url.scheme == "https" else None
            answer = await http_client.get(url, addresses, where, limit=self._limit, context=context, take=take)
            if answer.location is None:
                return answer.body
            try:
                url = url.joined(answer.location)
            except InvalidUrl as error:
                raise InvalidMedia(where, str(error)) from None
        raise InvalidMedia(where, f"the URL redirects more than {MAX_REDIRECTS} times")

    async def _tls(self) -> ssl.SSLContext:
        if self._context is None:
            self._context = await trio.to_thread.run_sync(client_context)
        return self._context
