"""Exceptions in Anthropic's shape: ``{"type": "error", "error": {"type", "message"}, "request_id"}``.

===========  ==========================================
status       ``error.type``
===========  ==========================================
400, 409     invalid_request_error
401          authentication_error
403          permission_error
404          not_found_error
413          request_too_large
429          rate_limit_error
503          overloaded_error
504          timeout_error
other        invalid_request_error (4xx), api_error (5xx)
===========  ==========================================

Headers are the same as on every other API (`api.errors.error_headers`).
"""

from __future__ import annotations

import json

from smg_trio.api.errors import Headers, error_headers, error_view
from smg_trio.api.sse import named_event

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


def messages_error_body(exc: BaseException, request_id: str | None = None) -> bytes:
    """The body of an exception; ``request_id`` is the HTTP request's id if it has one."""
    view = error_view(exc)
    kind = _TYPES.get(view.status) or ("invalid_request_error" if view.status < 500 else "api_error")
    value = {"type": "error", "error": {"type": kind, "message": view.message}, "request_id": request_id}
    return json.dumps(value, separators=(",", ":")).encode("ascii")


def messages_error_response(exc: BaseException, request_id: str | None = None) -> tuple[int, Headers, bytes]:
    """Status, headers and body of an answer that fails before its first byte."""
    return error_view(exc).status, error_headers(exc), messages_error_body(exc, request_id)


def messages_error_event(exc: BaseException, request_id: str | None = None) -> bytes:
    """The event of an answer that fails after its first byte; nothing follows it."""
    return named_event("error", messages_error_body(exc, request_id))
