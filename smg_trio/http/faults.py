"""What the server itself answers when a request never reaches the app, or cannot be read to its end. Pure.

Each fault is a `ClientFault` with its own ``status`` and ``code``. `error_response` makes the bytes: the
body has the shape OpenAI clients parse, and the connection is closed after it, because after any of these
the server no longer knows where the next request would begin.
"""

from __future__ import annotations

import json
from http import HTTPStatus

from smg_trio.core.errors import ClientFault, SmgError


class RequestFault(ClientFault):
    """The request breaks HTTP/1.1 framing or syntax."""

    code = "bad_request"


class RequestTimeout(RequestFault):
    """The request's head or body did not arrive in time."""

    code = "request_timeout"
    status = 408


class RequestTooLarge(RequestFault):
    """The request body is larger than the server takes."""

    code = "request_too_large"
    status = 413

    def __init__(self, max_body_bytes: int) -> None:
        super().__init__(f"The request body is larger than {max_body_bytes} bytes.")


class ExpectationFailed(RequestFault):
    """An ``Expect`` header other than ``100-continue``."""

    code = "expectation_failed"
    status = 417


class HeadersTooLarge(RequestFault):
    """The request head has too many bytes or lines."""

    code = "headers_too_large"
    status = 431


class MethodRefused(RequestFault):
    """A method that HTTP has and no resource of this server allows."""

    code = "method_not_allowed"
    status = 405


class MethodUnknown(RequestFault):
    """A method or transfer coding this server does not implement."""

    code = "not_implemented"
    status = 501


class TooManyConnections(RequestFault):
    """The connection cap is reached."""

    code = "too_many_connections"
    status = 503
    retryable = True


class VersionUnsupported(RequestFault):
    """Neither HTTP/1.0 nor HTTP/1.1."""

    code = "http_version_not_supported"
    status = 505


class AppFailed(SmgError):
    """The app raised, or returned without an answer."""

    def __init__(self) -> None:
        super().__init__("The server had an error while processing the request.")


def error_body(fault: SmgError) -> bytes:
    """The JSON body of a fault, in OpenAI's shape."""
    kind = "server_error" if fault.status in {500, 503} else "invalid_request_error"
    error = {"message": fault.message, "type": kind, "param": None, "code": fault.code}
    return json.dumps({"error": error}).encode()


def error_headers(body: bytes) -> list[tuple[bytes, bytes]]:
    """Response headers that go with `error_body`; they end the connection."""
    return [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"connection", b"close"),
    ]


def error_response(fault: SmgError, *, head_only: bool = False) -> bytes:
    """A whole HTTP/1.1 response for a fault; ``head_only`` leaves out the body (HEAD requests)."""
    body = error_body(fault)
    lines = [f"HTTP/1.1 {fault.status} {HTTPStatus(fault.status).phrase}\r\n".encode()]
    lines += [b"%b: %b\r\n" % header for header in error_headers(body)]
    if fault.status == 405:
        lines.append(b"allow: GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS\r\n")
    return b"".join(lines) + b"\r\n" + (b"" if head_only else body)
