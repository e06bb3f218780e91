"""The probes on a listener of their own, for load balancers and orchestrators that must not reach anything else."""

from __future__ import annotations

from typing import Final

from smg_trio.gateway.endpoints.probes import liveness, readiness
from smg_trio.gateway.http import Request
from smg_trio.gateway.state import Gateway
from smg_trio.http.asgi import Receive, Scope, Send

_PROBES: Final = {"/liveness": liveness, "/readiness": readiness, "/health": liveness}
_NOT_FOUND: Final = (
    b'{"error":{"message":"Only GET /liveness, /readiness and /health are served here.",'
    b'"type":"invalid_request_error","param":null,"code":"not_found"}}'
)


class ProbesApp:
    """An ASGI app with three paths."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            return
        probe = _PROBES.get(scope["path"]) if scope["method"] in ("GET", "HEAD") else None
        status, body, kind = 404, _NOT_FOUND, "application/json"
        if probe is not None:
            request = Request(method=scope["method"], path=scope["path"], headers={}, request_id="")
            response = await probe(self._gateway, request)
            assert isinstance(response.body, bytes), "probes answer in one piece"
            status, body, kind = response.status, response.body, dict(response.headers)["content-type"]
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
