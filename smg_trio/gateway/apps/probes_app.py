"""The probes on a listener of their own, for load balancers and orchestrators that must not reach anything else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from smg_trio.core.errors import ClientFault, NotFound
from smg_trio.gateway.apps.asgi_responses import headers_of, method_of, send_refusal, send_whole
from smg_trio.gateway.apps.refusals import refuse
from smg_trio.gateway.endpoints.probes import liveness, readiness
from smg_trio.gateway.handling import request_id_of
from smg_trio.gateway.http import Request
from smg_trio.gateway.request_context import RequestContext

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.http.asgi import Receive, Scope, Send

_PROBES: Final = {"/liveness": liveness, "/readiness": readiness, "/health": liveness}


class ProbesApp:
    """An ASGI app with three paths."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        method, path, headers = method_of(scope), scope["path"], headers_of(scope)
        probe = _PROBES.get(path) if method in ("GET", "HEAD") else None
        if probe is None:
            fault: ClientFault = NotFound("Only GET /liveness, /readiness and /health are served here.")
            await send_refusal(send, method, refuse(self._gateway, fault, method, path, headers))
            return
        context = RequestContext(*request_id_of(headers, self._gateway.settings.request_id_headers))
        response = await probe(self._gateway, Request(method=method, path=path, headers=headers, context=context))
        assert isinstance(response.body, bytes), "probes answer in one piece"
        response.headers.append(("x-request-id", context.request_id))
        await send_whole(send, response, response.body, [])
