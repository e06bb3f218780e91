"""Requests about workers and engines: a front takes them in, the keeper answers them.

The front has looked at key, role and limits and read the body; what goes to the keeper and back is what endpoints are
made of anyway, a `Request` and a `Response`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from smg_trio.core.errors import SmgError
from smg_trio.core.log_context import request_id
from smg_trio.gateway.http import Request, Response
from smg_trio.gateway.request_context import RequestContext
from smg_trio.gateway.routes import ROUTES

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.processes.channel import Channel

logger = logging.getLogger("smg_trio.processes")

_BY_TEMPLATE = {(route.method, route.path): route for route in ROUTES}


async def forward(keeper: Channel, template: str, request: Request) -> Response:
    """Have the keeper answer. Raises PeerGone."""
    value = {
        "method": request.method,
        "template": template,
        "path": request.path,
        "headers": dict(request.headers),
        "request_id": request.context.request_id,
        "body": request.body,
        "path_parameters": dict(request.path_parameters),
        "query": dict(request.query),
        "repeated": {name: list(values) for name, values in request.repeated.items()},
    }
    request.body = b""
    status, body, headers = await keeper.call("forward", value)
    return Response(status, body, [(name, text) for name, text in headers])


async def answer_forwarded(gateway: Gateway, value: dict[str, Any]) -> list[Any]:
    """The keeper's side: the endpoint's answer, or what its error looks like to clients: status, body, headers."""
    route = _BY_TEMPLATE[value["method"], value["template"]]
    request = Request(
        method=value["method"],
        path=value["path"],
        headers=value["headers"],
        context=RequestContext(value["request_id"]),
        body=value["body"],
        path_parameters=value["path_parameters"],
        query=value["query"],
        repeated=value["repeated"],
    )
    request_id.set(value["request_id"])
    try:
        response = await route.endpoint(gateway, request)
    except Exception as error:
        if not isinstance(error, SmgError):
            logger.exception("request to %s failed", route.path)
        gateway.errors.note(error, route.path, value["request_id"])
        status, headers, body = route.failure(error, value["request_id"])
        return [status, body, headers]
    assert isinstance(response.body, bytes), "endpoints about workers and engines do not stream"
    return [response.status, response.body, response.headers]
