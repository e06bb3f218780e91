"""What a request head means, and what no head may contain. Pure.

As strict as both parsers together, and stricter where they are lax: one Host in HTTP/1.1, never
Content-Length with Transfer-Encoding, no folded lines, no bare CR or LF, no control characters, no transfer
coding but ``chunked``, and that in HTTP/1.1 only. Every one of these has been a way to smuggle requests.
Upgrades other than to WebSocket (``h2c``) are ignored, as RFC 9110 (7.8) allows.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from smg_trio.http.faults import (
    NOTHING_READ,
    HeadersTooLarge,
    MethodUnknown,
    PartialRequest,
    RequestFault,
    VersionUnsupported,
)
from smg_trio.http.head_checks import (
    KNOWN_METHODS,
    check_content_length,
    check_expectation,
    check_method,
    check_websocket,
)
from smg_trio.http.websocket_extensions import without_offer

if TYPE_CHECKING:
    from smg_trio.http.asgi import Headers
    from smg_trio.http.h1.parsers import HeadParser
    from smg_trio.http.settings import ServerLimits

_REQUEST_LINE = re.compile(rb"([!#$%&'*+\-.^_`|~0-9A-Za-z]+) ([\x21-\x7e]+) HTTP/([0-9]\.[0-9])\r\n")
_ABSOLUTE_FORM = re.compile(rb"https?://[0-9A-Za-z.\-_~%!$&'()*+,;=:@\[\]]+(?=[/?]|\Z)", re.IGNORECASE)
_PERMITTED = bytes(c for c in range(256) if c in b"\t\r\n" or (c >= 32 and c != 127))
_MEANINGFUL = frozenset({b"connection", b"content-length", b"expect", b"host", b"transfer-encoding", b"upgrade"})
_SHOWN_LINES = 200


@dataclass(slots=True)
class RequestHead:
    """One request up to its body.

    Attributes:
        method: upper case.
        path: percent-encoded, always beginning with ``/`` (or ``*`` for OPTIONS).
        query: what follows ``?``, without it.
        http11: HTTP/1.1, else HTTP/1.0.
        headers: lower-case names, in order.
        content_length: declared body length; ``None`` if there is none.
        chunked: the body is in chunked coding.
        keep_alive: the client can use the connection again.
        expects_continue: the client waits for ``100 Continue`` before it sends the body.
        websocket: the client asks to speak WebSocket.
    """

    method: str
    path: bytes
    query: bytes
    http11: bool
    headers: Headers
    content_length: int | None = None
    chunked: bool = False
    keep_alive: bool = True
    expects_continue: bool = False
    websocket: bool = False


def read_head(raw: bytes, parser: HeadParser, limits: ServerLimits) -> RequestHead:
    """Reads a complete head.

    Args:
        raw: the head with its blank line, as `HeadFinder` cuts it.
        parser: what reads the header lines.
        limits: header count and declared body size are held against these.

    Raises:
        RequestFault: one of its kinds says what is wrong, and the status to answer with.
    """
    _check_lines(raw, limits.max_headers)
    match = _REQUEST_LINE.match(raw)
    if match is None:
        raise RequestFault("The request line is not valid.")
    method, target, version = match.groups()
    http11 = version == b"1.1"
    if not http11 and version != b"1.0":
        raise VersionUnsupported("Only HTTP/1.1 and HTTP/1.0 are served on this connection.")
    if method not in KNOWN_METHODS:
        check_method(method)
    path, _, query = _origin_form(target, method).partition(b"?")
    head = RequestHead(method.decode(), path, query, http11, parser.parse(raw))
    _interpret(head, limits)
    return head


def asked_by(head: RequestHead) -> PartialRequest:
    """A request whose head was read, for whom it is answered in place of the app."""
    return PartialRequest(head.method, head.path.decode(), head.headers)


def partial_request(raw: bytes) -> PartialRequest:
    """What may be told of the head of a request that is refused, broken or incomplete as it may be."""
    match = _REQUEST_LINE.match(raw)
    if match is None:
        return NOTHING_READ
    fields = [line.partition(b":") for line in raw.split(b"\r\n")[1:_SHOWN_LINES]]
    headers = [(name.lower(), value.strip(b" \t")) for name, colon, value in fields if colon]
    path = match[2].partition(b"?")[0]
    return PartialRequest(match[1].decode(), path.decode(), headers)


def _check_lines(raw: bytes, max_headers: int) -> None:
    lines = raw.count(b"\r\n")
    if lines - 2 > max_headers:
        raise HeadersTooLarge(f"The request has more than {max_headers} headers.")
    if raw.count(b"\n") != lines or raw.count(b"\r") != lines:
        raise RequestFault("Lines of the request head must end with CRLF.")
    if raw.translate(None, _PERMITTED):
        raise RequestFault("The request head contains control characters.")
    if b"\n " in raw or b"\n\t" in raw:
        raise RequestFault("Folded header lines are not accepted.")


def _origin_form(target: bytes, method: bytes) -> bytes:
    if target.startswith(b"/"):
        return target
    if target == b"*" and method == b"OPTIONS":
        return target
    absolute = _ABSOLUTE_FORM.match(target)
    if absolute is None:
        raise RequestFault("The request target is not valid.")
    rest = target[absolute.end() :]
    return rest if rest.startswith(b"/") else b"/" + rest


def _interpret(head: RequestHead, limits: ServerLimits) -> None:
    hosts = upgrades = 0
    connection = upgrade = b""
    for name, value in head.headers:
        if name not in _MEANINGFUL:
            continue
        if name == b"host":
            hosts += 1
        elif name == b"content-length":
            if head.content_length is not None:
                raise RequestFault("The request has more than one Content-Length.")
            head.content_length = check_content_length(value, limits.max_body_bytes)
        elif name == b"transfer-encoding":
            _set_chunked(head, value)
        elif name == b"connection":
            connection += b"," + value.lower()
        elif name == b"expect":
            _set_expectation(head, value)
        else:
            upgrades += 1
            upgrade += b"," + value.lower()
    if hosts > 1 or (head.http11 and not hosts):
        raise RequestFault("The request must have exactly one Host header.")
    if head.chunked and head.content_length is not None:
        raise RequestFault("Content-Length and Transfer-Encoding exclude each other.")
    _set_connection(head, connection, upgrade)
    if upgrades > 1 and b"websocket" in upgrade:
        raise RequestFault("A WebSocket handshake must have one Upgrade header.")
    if head.websocket:
        if head.chunked or head.content_length:
            raise RequestFault("A WebSocket handshake must not have a body.")
        check_websocket(head.headers)


def _set_chunked(head: RequestHead, value: bytes) -> None:
    if not head.http11:
        raise RequestFault("Transfer-Encoding is not part of HTTP/1.0.")
    if head.chunked or value.lower() != b"chunked":
        raise MethodUnknown("The only transfer coding implemented is chunked.")
    head.chunked = True


def _set_expectation(head: RequestHead, value: bytes) -> None:
    if not head.http11:
        return
    check_expectation(value)
    head.expects_continue = True


def websocket_request(head: RequestHead) -> bytes:
    """The handshake of ``head`` for whom the connection is handed to, so that both read the same request."""
    target = head.path + b"?" + head.query if head.query else head.path
    lines = [b"GET %b HTTP/1.1\r\n" % target]
    lines += [b"%b: %b\r\n" % (name, value) for name, value in without_offer(head.headers)]
    return b"".join(lines) + b"\r\n"


def _set_connection(head: RequestHead, connection: bytes, upgrade: bytes) -> None:
    tokens = {token.strip() for token in connection.split(b",")} if connection else frozenset()
    head.keep_alive = b"close" not in tokens if head.http11 else b"keep-alive" in tokens
    if upgrade == b",websocket" and b"upgrade" in tokens:
        head.websocket = head.http11 and head.method == "GET"
