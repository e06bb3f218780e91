"""Answers to requests that reach no endpoint: refused by the server, the router, or a check in front of both.

They have what all answers have: a request id, an error code, a line in the access log, and a count by status and code.
"""

from __future__ import annotations

from collections.abc import Mapping

from smg_trio.gateway.handling import request_id_of
from smg_trio.gateway.http import Response
from smg_trio.gateway.observability.http_metrics import UNMATCHED
from smg_trio.gateway.routes import WEBSOCKET_PATHS, find_route, openai_failure
from smg_trio.gateway.security.cors import cors_headers
from smg_trio.gateway.state import Gateway


def refuse(gateway: Gateway, error: Exception, method: str, path: str, headers: Mapping[str, str]) -> Response:
    """Make the answer, count it and log it.

    Args:
        gateway: whose metrics and access log hear of it.
        error: in the shape of the route's API, if it is for one.
        method: ``WEBSOCKET`` for a WebSocket handshake.
        path: the client's own word.
        headers: by lower-case name; as many as are known.
    """
    route = find_route(method, path)
    request_id = request_id_of(headers, gateway.settings.request_id_headers)[0]
    status, answer_headers, body = (route.failure if route else openai_failure)(error, request_id)
    code = dict(answer_headers).get("x-smg-error-code", "")
    answer_headers = [*answer_headers, ("x-request-id", request_id)]
    answer_headers += cors_headers(headers.get("origin"), gateway.origins.allowed)
    if method == "WEBSOCKET":
        method, label = "GET", path if path in WEBSOCKET_PATHS else UNMATCHED
    else:
        label = route.path if route else UNMATCHED
    gateway.metrics.http.refused(method, status, code, label)
    gateway.access.refused(method, path, status, code, request_id)
    return Response(status, body, answer_headers)
