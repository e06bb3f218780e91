"""What a request's method and headers may say, in every version of HTTP. Pure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from smg_trio.http.faults import (
    ExpectationFailed,
    MethodNotAllowed,
    MethodUnknown,
    RequestFault,
    RequestTooLarge,
    WebSocketVersionRefused,
)

if TYPE_CHECKING:
    from smg_trio.http.asgi import Headers

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
KNOWN_METHODS = frozenset(method.encode() for method in METHODS)
_REFUSED_METHODS = frozenset({b"CONNECT", b"QUERY", b"TRACE"})
_WEBSOCKET_KEY = re.compile(rb"[0-9A-Za-z+/]{22}==")
_WEBSOCKET_VERSION = b"13"


def check_method(method: bytes) -> None:
    """Raises MethodNotAllowed or MethodUnknown for what no resource here has."""
    if method not in KNOWN_METHODS:
        if method in _REFUSED_METHODS:
            raise MethodNotAllowed(f"{method.decode()} is not allowed.", METHODS)
        raise MethodUnknown("The request method is not implemented.")


def check_content_length(value: bytes, max_body_bytes: int) -> int:
    """The number of a Content-Length. Raises RequestFault if it is none, RequestTooLarge beyond the limit."""
    if not value.isdigit() or len(value) > 18:
        raise RequestFault("Content-Length is not a valid number.")
    length = int(value)
    if length > max_body_bytes:
        raise RequestTooLarge(max_body_bytes)
    return length


def check_expectation(value: bytes) -> None:
    """Raises ExpectationFailed for an Expect that this server cannot meet."""
    if value.lower() != b"100-continue":
        raise ExpectationFailed("The only expectation that can be met is 100-continue.")


def check_websocket(headers: Headers, *, keyed: bool = True) -> None:
    """Whether a WebSocket handshake is complete; ``keyed``: it has a key, as over HTTP/1.1.

    Raises:
        RequestFault: it is not; `WebSocketVersionRefused` names the version that is.
    """
    versions = [value for name, value in headers if name == b"sec-websocket-version"]
    if versions != [_WEBSOCKET_VERSION]:
        raise WebSocketVersionRefused("The WebSocket handshake must say 'Sec-WebSocket-Version: 13'.")
    keys = [value for name, value in headers if name == b"sec-websocket-key"]
    if keyed and (len(keys) != 1 or _WEBSOCKET_KEY.fullmatch(keys[0]) is None):
        raise RequestFault("The WebSocket handshake must have one Sec-WebSocket-Key of 16 bytes in base64.")
