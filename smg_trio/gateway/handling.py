"""What every request goes through, however it came in: key, content type, endpoint, errors, request id, counting.

The one border at which exceptions of endpoints are caught; `api.errors` turns them into bodies.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Mapping
from secrets import token_hex

from smg_trio.api.errors import error_response
from smg_trio.core.errors import ClientFault, SmgError, Unauthorized
from smg_trio.gateway.http import Headers, Request, Response
from smg_trio.gateway.routes import Route
from smg_trio.gateway.state import Gateway

logger = logging.getLogger("smg_trio.gateway")

_MAX_REQUEST_ID_CHARS = 256


class UnsupportedMediaType(ClientFault):
    """A body that does not claim to be JSON."""

    code = "unsupported_media_type"
    status = 415


async def handle(gateway: Gateway, route: Route, request: Request) -> Response:
    """Call the route's endpoint. Raises nothing but cancellation; the caller closes a `ByteStream` body."""
    try:
        if not route.public:
            check_key(gateway.settings.api_key, request.headers)
        if route.method == "POST" and request.body:
            _check_content_type(request.headers)
        response = await route.endpoint(gateway, request)
        code = ""
    except Exception as error:
        if not isinstance(error, SmgError):
            logger.exception("request %s to %s failed", request.request_id, route.path)
        response = Response(*_reordered(route.failure(error, request.request_id)))
        code = dict(response.headers).get("x-smg-error-code", "")
    gateway.metrics.http_response(route.path, response.status, code)
    response.headers.append(("x-request-id", request.request_id))
    return response


def _reordered(failure: tuple[int, Headers, bytes]) -> tuple[int, bytes, Headers]:
    status, headers, body = failure
    return status, body, headers


def failure(error: BaseException) -> Response:
    """The response of a request that failed before its first byte."""
    status, headers, body = error_response(error)
    return Response(status, body, headers)


def check_key(expected: str | None, headers: Mapping[str, str]) -> None:
    """Raises Unauthorized unless the key of the request, in constant time, is the expected one.

    The key comes as ``Authorization: Bearer KEY`` or, as Anthropic's clients send it, ``x-api-key: KEY``.
    """
    if expected is None:
        return
    scheme, _, given = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        given = headers.get("x-api-key", "")
    # Header values are text of one byte per character; the client meant UTF-8 by them.
    if not hmac.compare_digest(given.strip().encode("latin-1", "replace"), expected.strip().encode("utf-8", "replace")):
        raise Unauthorized("Incorrect API key provided." if given else "An API key is required.")


def _check_content_type(headers: Mapping[str, str]) -> None:
    content_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type and content_type != "application/json" and not content_type.endswith("+json"):
        raise UnsupportedMediaType(
            f"The content type {content_type} is not supported; send JSON with 'Content-Type: application/json'.",
        )


def request_id_of(headers: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, bool]:
    """The request's id and whether the client named it: the first usable one of the headers `names`, or a new one."""
    for name in names:
        value = headers.get(name)
        if value and len(value) <= _MAX_REQUEST_ID_CHARS and value.isascii() and value.isprintable():
            return value, True
    return f"req-{token_hex(12)}", False
