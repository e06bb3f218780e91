"""Cross-origin headers: none unless the operator names origins.

Origins are compared in the normal form of `origins`; who may send at all is decided there.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from smg_trio.gateway.security.origins import ANY, normal_origin

if TYPE_CHECKING:
    from smg_trio.api.errors import Headers

_MAX_AGE_S = "3600"
_METHODS = "GET, POST, PUT, PATCH, DELETE, OPTIONS"
_REQUEST_HEADERS = "content-type, authorization, x-api-key, x-request-id"


def cors_headers(origin: str | None, allowed: Collection[str]) -> Headers:
    """The headers for an answer to a page of `origin`; none if that page may not read it.

    `allowed`: in normal form, or `ANY`.
    """
    if origin is None or not allowed:
        return []
    if ANY in allowed:
        return [("access-control-allow-origin", "*")]
    if normal_origin(origin) in allowed:
        return [("access-control-allow-origin", origin), ("vary", "Origin")]
    return []


def preflight_headers(origin: str | None, allowed: Collection[str], asked_headers: str | None = None) -> Headers:
    """The headers for the answer to a browser's OPTIONS: what it may send, if it may.

    Clients' libraries send headers of their own, so those it asks for are allowed as they are; "*" would not cover
    the one that carries the key.
    """
    headers = cors_headers(origin, allowed)
    if headers:
        headers += [
            ("access-control-allow-methods", _METHODS),
            ("access-control-allow-headers", asked_headers or _REQUEST_HEADERS),
            ("access-control-max-age", _MAX_AGE_S),
        ]
    return headers
