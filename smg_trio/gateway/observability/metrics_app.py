"""``GET /metrics`` on a listener of its own."""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST

from smg_trio.gateway.observability.metrics import Metrics
from smg_trio.http.asgi import Receive, Scope, Send


class MetricsApp:
    """An ASGI app with one path."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI 3."""
        if scope["type"] != "http":
            return
        found = scope["path"] == "/metrics" and scope["method"] in ("GET", "HEAD")
        body = (
            self._metrics.exposition()
            if found
            else b'{"error":{"message":"Only GET /metrics is served here.",'
            + (b'"type":"invalid_request_error","param":null,"code":"not_found"}}')
        )
        headers = [
            (b"content-type", (CONTENT_TYPE_LATEST if found else "application/json").encode()),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": 200 if found else 404, "headers": headers})
        await send({"type": "http.response.body", "body": body})
