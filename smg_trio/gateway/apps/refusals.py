"""Answers to requests that reach no endpoint: refused by the server, the router, or a check in front of both.

They have what all answers have: a request id, an error code, a line in the access log, and a count by status and code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from smg_trio.gateway.apps.asgi_responses import raw_headers
from smg_trio.gateway.handling import request_id_of
from smg_trio.gateway.http import WEBSOCKET, Response
from smg_trio.gateway.observability.http_metrics import UNMATCHED
from smg_trio.gateway.routes import WEBSOCKET_PATHS, find_route, openai_failure
from smg_trio.gateway.security.cors import cors_headers
from smg_trio.http.faults import FaultAnswer, PartialRequest

if TYPE_CHECKING:
    from smg_trio.core.errors import SmgError
    from smg_trio.gateway.state import Gateway


def refuse(gateway: Gateway, error: Exception, method: str, path: str, headers: Mapping[str, str]) -> Response:
    """Make the answer, count it and log it.

    Args:
        gateway: whose metrics and access log hear of it.
        error: in the shape of the route's API, if it is for one.
        method: `WEBSOCKET` for a WebSocket handshake; empty if it was not read.
        path: the client's own word; empty if it was not read.
        headers: by lower-case name; as many as are known.
    """
    response = refusal(gateway, error, method, path, headers)
    note_answer(gateway, method, path, response)
    return response


def refusal(gateway: Gateway, error: Exception, method: str, path: str, headers: Mapping[str, str]) -> Response:
    """The answer alone; see `refuse`."""
    request_id = request_id_of(headers, gateway.settings.request_id_headers)[0]
    route = find_route(method, path)
    status, answer_headers, body = (route.failure if route else openai_failure)(error, request_id)
    identified = [*answer_headers, ("x-request-id", request_id)]
    return Response(status, body, identified + cors_headers(headers.get("origin"), gateway.origins.allowed))


def note_answer(gateway: Gateway, method: str, path: str, response: Response) -> None:
    """Count and log an answer that no endpoint gave; its headers say its code and id."""
    route = find_route(method, path)
    label = route.path if route else path if method == WEBSOCKET and path in WEBSOCKET_PATHS else UNMATCHED
    if method == WEBSOCKET:
        method = "GET"
    named = dict(response.headers)
    code = named.get("x-smg-error-code", "")
    gateway.metrics.http.refused(method, response.status, code, label)
    gateway.access.refused(method or "-", path or "-", response.status, code, named["x-request-id"])


class ServerRefusals:
    """What one of the gateway's servers is told to answer of itself: see `serve`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def answer(self, fault: SmgError, asked: PartialRequest) -> FaultAnswer:
        """The answer to `fault`."""
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in asked.headers}
        response = refusal(self._gateway, fault, asked.method, asked.path, headers)
        assert isinstance(response.body, bytes), "refusals have a body"
        return FaultAnswer(response.status, raw_headers(response.headers), response.body)

    def note(self, fault: SmgError, asked: PartialRequest, answer: FaultAnswer) -> None:
        """Count and log an answer."""
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in answer.headers]
        note_answer(self._gateway, asked.method, asked.path, Response(answer.status, answer.body, headers))
