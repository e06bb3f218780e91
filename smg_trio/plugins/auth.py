"""What an auth plug-in is asked, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

_NOTHING: Final[Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What a request came with that no key of the settings fits.

    Attributes:
        token: of ``Authorization: Bearer TOKEN``, else of ``x-api-key``; empty if there is neither.
        headers: all of them, by lower-case name.
        method, path: of the request; a WebSocket's handshake is ``GET``.
        options: of ``--plugin-option NAME.key=value``, by key.
    """

    token: str
    headers: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    method: str = ""
    path: str = ""
    options: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Whom a request is from.

    Attributes:
        name: what logs and metrics show; never a secret.
        id: by which limits are kept and stored responses are owned; empty: by the name.
        scopes: what it opens: ``models``, ``user`` (looking at workers), ``admin`` (changing them). Others are ignored.
        max_concurrent_requests, tokens_per_minute: its limits; None: those of ``--key-max-concurrent-requests`` and
            ``--key-tokens-per-minute``; 0: none.
        ttl_s: how long the same token need not be asked about again, in seconds; 0: every request asks.
    """

    name: str
    id: str = ""
    scopes: frozenset[str] = frozenset({"models"})
    max_concurrent_requests: int | None = None
    tokens_per_minute: int | None = None
    ttl_s: float = 0.0


Authenticate = Callable[[Credentials], Awaitable[Identity | None]]
