"""``GET /metrics`` on a listener of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CONTENT_TYPE_LATEST

from smg_trio.core.errors import ClientFault, NotFound
from smg_trio.gateway.apps.asgi_responses import headers_of, method_of, send_refusal, send_whole
from smg_trio.gateway.apps.refusals import refuse
from smg_trio.gateway.handling import request_id_of
from smg_trio.gateway.http import Response
from smg_trio.gateway.security.exposure import is_local

if TYPE_CHECKING:
    from smg_trio.gateway.state import Gateway
    from smg_trio.http.asgi import Receive, Scope, Send


class MetricsApp:
    """An ASGI app with one path. It has no keys, so web pages are held to loopback names on a loopback address."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._loopback_only = is_local(gateway.settings.prometheus_host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        method, path, headers = method_of(scope), scope["path"], headers_of(scope)
        try:
            self._gateway.origins.check(method, headers, loopback_only=self._loopback_only)
            if path != "/metrics" or method not in ("GET", "HEAD"):
                raise NotFound("Only GET /metrics is served here.")
        except ClientFault as fault:
            await send_refusal(send, method, refuse(self._gateway, fault, method, path, headers))
            return
        request_id = request_id_of(headers, self._gateway.settings.request_id_headers)[0]
        named = [("content-type", CONTENT_TYPE_LATEST), ("x-request-id", request_id)]
        body = await self._gateway.sharing.exposition(self._gateway.metrics.exposition())
        await send_whole(send, Response(200, body, named), body, [])
