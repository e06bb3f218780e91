"""What an HTTP/2 request head may be: as much as one of HTTP/1.1, and no more. Pure.

hyper-h2 has looked at the frames, at pseudo-headers and at headers of HTTP/1.1 connections before; it lets numbers,
targets and values through as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from smg_trio.http.faults import HeadersTooLarge, PartialRequest, RequestFault
from smg_trio.http.head_checks import check_content_length, check_expectation, check_method, check_websocket

if TYPE_CHECKING:
    from smg_trio.http.asgi import Headers
    from smg_trio.http.settings import ServerLimits

_TARGET = re.compile(rb"/[\x21-\x7e]*")
_LINE_BREAKS = re.compile(rb"[\r\n\0]")


class Http2Head(NamedTuple):
    """A request up to its body.

    Attributes:
        method: ``GET`` for a WebSocket handshake, which is a CONNECT here (RFC 8441).
        target: path and query.
        headers: with ``host`` in front, without pseudo-headers.
        websocket: the client asks to speak WebSocket.
    """

    method: str
    target: bytes
    headers: Headers
    websocket: bool


def read_http2_head(fields: Iterable[tuple[bytes, bytes]], limits: ServerLimits) -> Http2Head:
    """Reads the decoded header fields of one request.

    Raises:
        RequestFault: one of its kinds says what is wrong, and the status to answer with.
    """
    pseudo, headers = _split(fields)
    _check_size(headers, limits)
    websocket = pseudo.get(b":method") == b"CONNECT" and pseudo.get(b":protocol") == b"websocket"
    method = b"GET" if websocket else pseudo.get(b":method", b"")
    check_method(method)
    target = pseudo.get(b":path", b"")
    if _TARGET.fullmatch(target) is None and not (target == b"*" and method == b"OPTIONS"):
        raise RequestFault("The request target is not valid.")
    if websocket:
        check_websocket(headers, keyed=False)
    host = _host(pseudo.get(b":authority"), headers)
    _check_values(headers, limits)
    rest = [(name, value) for name, value in headers if name != b"host"]
    return Http2Head(method.decode(), target, [(b"host", host), *rest], websocket)


def partial_http2_request(fields: Iterable[tuple[bytes, bytes]]) -> PartialRequest:
    """What may be told of a request that is refused."""
    pseudo, headers = _split(fields)
    method, path = pseudo.get(b":method", b""), pseudo.get(b":path", b"").partition(b"?")[0]
    return PartialRequest(method.decode("latin-1"), path.decode("latin-1"), headers)


def _split(fields: Iterable[tuple[bytes, bytes]]) -> tuple[dict[bytes, bytes], Headers]:
    pseudo: dict[bytes, bytes] = {}
    headers: Headers = []
    for name, value in fields:
        if name.startswith(b":"):
            pseudo[name] = value
        else:
            headers.append((name, value))
    return pseudo, headers


def _check_size(headers: Headers, limits: ServerLimits) -> None:
    if len(headers) > limits.max_headers:
        raise HeadersTooLarge(f"The request has more than {limits.max_headers} headers.")
    if sum(len(name) + len(value) for name, value in headers) > limits.max_header_bytes:
        raise HeadersTooLarge(f"The request head is larger than {limits.max_header_bytes} bytes.")


def _host(authority: bytes | None, headers: Headers) -> bytes:
    hosts = [value for name, value in headers if name == b"host"]
    if authority is not None:
        hosts.append(authority)
    if not hosts or any(host != hosts[0] for host in hosts):
        raise RequestFault("The request must have exactly one host, as :authority or Host.")
    return hosts[0]


def _check_values(headers: Headers, limits: ServerLimits) -> None:
    lengths = 0
    for name, value in headers:
        if _LINE_BREAKS.search(value):
            raise RequestFault("The request head contains control characters.")
        if name == b"content-length":
            lengths += 1
            check_content_length(value, limits.max_body_bytes)
        elif name == b"expect":
            check_expectation(value)
    if lengths > 1:
        raise RequestFault("The request has more than one Content-Length.")
